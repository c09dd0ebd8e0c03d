//! An S3-compatible store: moto's server, from the package registry, with a bucket `lab`. What is put into it is a test's own.

use crate::{
    LIMIT,
    exchange::ask,
    process::{Programs, Running},
    python,
    wait::wait_blocking,
};

/// Starts one on a port of this machine.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn start(programs: &Programs, port: u16) -> Running {
    let moto = python::environment("moto").join("moto_server");
    let moto = moto.to_str().expect("a plain path");
    let server = programs.start(moto, &["-H", "127.0.0.1", "-p", &port.to_string()]);
    wait_blocking("the store to answer", LIMIT * 2, || {
        if ask(port, "GET / HTTP/1.0\r\n\r\n", b"").is_ok() { Ok(()) } else { Err(server.log()) }
    });
    let bucket = format!("PUT /lab HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n");
    ask(port, &bucket, b"").expect("a bucket");
    server
}
