//! A service that sends its clients elsewhere: what they say to it is for nobody else.
#![expect(clippy::unwrap_used, reason = "a test's helper fails as a test does")]

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    thread,
};

use copal_client::{Client, ClientError};

/// Answers each request with this head; gives its address.
fn answering(head: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            // The body is of no interest.
            if lines.any(|line| line.is_empty()) {
                write!(&stream, "HTTP/1.1 {head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            }
        }
    });
    address
}

#[tokio::test]
async fn a_password_does_not_follow_a_redirection() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let location = format!("http://{}/auth/password/login", elsewhere.local_addr().unwrap());
    for status in ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let service = answering(format!("{status}\r\nlocation: {location}"));
        let client = Client::new(&service.parse().unwrap(), None).unwrap();
        let Err(ClientError::Problem(problem)) = client.login("ann", "correct horse").await else {
            panic!("{status} was followed");
        };
        assert!(problem.detail.contains(status) && problem.detail.contains(&location), "{}", problem.detail);
    }
    assert!(elsewhere.accept().is_err(), "somebody came");
}
