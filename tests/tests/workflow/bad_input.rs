//! Wrong input: each one clear line on stderr with the remedy, exit code 1, or 2 for wrong usage.

use std::fs;

use copal_tests::process::free_port;

use crate::laptop::{Laptop, refused};

#[test]
fn a_wrong_password() {
    let laptop = Laptop::new();
    let url = format!("http://127.0.0.1:{}", laptop.port);
    let output = laptop
        .programs
        .command("copal")
        .env("COPAL_PASSWORD", "wrong")
        .args(["login", "--url", &url, "--username", "ann"])
        .output()
        .unwrap();
    let text = refused(&output, 1);
    assert!(text.contains("password"), "{text}");
}

#[test]
fn a_token_of_another_service() {
    let laptop = Laptop::new();
    let other = Laptop::new();
    let mine = laptop.programs.home().join(".copal/client.yml");
    let text = fs::read_to_string(&mine).unwrap();
    fs::write(&mine, text.replace(&laptop.port.to_string(), &other.port.to_string())).unwrap();
    let text = refused(&laptop.programs.run("copal", &["whoami"]), 1);
    assert!(text.contains("copal login"), "{text}");
}

#[test]
fn credentials_that_others_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let laptop = Laptop::new();
    let path = laptop.programs.home().join(".copal/client.yml");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let text = refused(&laptop.programs.run("copal", &["whoami"]), 1);
    assert!(text.contains("chmod 600"), "{text}");
}

#[test]
fn an_unknown_and_a_taken_site() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    let unknown =
        ["queue", "submit", "--site", "nowhere", "-n", "1", "-t", "5", "-q", "local", "-A", "local", "-j", "mpi"];
    let text = refused(&laptop.try_site(&unknown), 1);
    assert!(text.contains("nowhere"), "{text}");
    let second = laptop.programs.home().join("second");
    let taken = ["site", "init", second.to_str().unwrap(), "--name", "laptop", "--platform", "local", "-y"];
    let text = refused(&laptop.programs.run("copal", &taken), 1);
    assert!(text.contains("laptop") && text.contains("--name"), "{text}");
    assert!(!second.exists(), "a half-made Site is left");
}

#[test]
fn an_unknown_key_in_settings_is_named_with_its_line() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    let path = laptop.site_path().join("settings.yml");
    let text = fs::read_to_string(&path).unwrap();
    let line = text.lines().count() + 1;
    fs::write(&path, format!("{text}no_such_key: 1\n")).unwrap();
    let text = refused(&laptop.try_site(&["site", "start"]), 1);
    assert!(
        text.contains("no_such_key") && text.contains(&line.to_string()) && text.contains("settings.yml"),
        "{text}"
    );
}

#[test]
fn an_unknown_variable_in_the_template_is_named() {
    let laptop = Laptop::new();
    laptop.init_site(1);
    let path = laptop.site_path().join("job-template.sh");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}\necho {{{{num_noodles}}}}\n")).unwrap();
    let text = refused(&laptop.try_site(&["site", "sync"]), 1);
    assert!(text.contains("num_noodles") && text.contains("job-template.sh"), "{text}");
}

#[test]
fn a_port_in_use_and_no_postgres() {
    let laptop = Laptop::new();
    let listen = format!("127.0.0.1:{}", laptop.port);
    let second = laptop.programs.home().join("second-home");
    let output = laptop
        .programs
        .command("copal-server")
        .env("COPAL_HOME", &second)
        .args(["--listen", &listen])
        .output()
        .unwrap();
    let text = refused(&output, 1);
    assert!(text.contains(&listen) && text.contains("--listen"), "{text}");

    let output = laptop
        .programs
        .command("copal-server")
        .env("COPAL_HOME", &second)
        .env("COPAL_POSTGRES_BIN", "/nonexistent")
        .args(["--listen", &format!("127.0.0.1:{}", free_port())])
        .output()
        .unwrap();
    let text = refused(&output, 1);
    assert!(text.contains("apt-get install postgresql"), "{text}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let laptop = Laptop::new();
    for arguments in [&["job", "create"][..], &["jbo", "ls"], &["job", "ls", "--no-such-option"]] {
        let text = refused(&laptop.programs.run("copal", arguments), 2);
        assert!(text.contains("--help") || text.contains("Usage"), "{text}");
    }
    refused(&laptop.programs.run("copal-server", &["--listen", "nonsense"]), 2);
    refused(&laptop.programs.run("copal-launcher", &["-j", "gpu"]), 2);
}
