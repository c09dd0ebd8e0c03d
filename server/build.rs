//! Rebuilds the crate when a migration is added: `sqlx::migrate!` only tracks the files it saw.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
