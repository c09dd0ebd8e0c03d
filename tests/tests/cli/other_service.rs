//! A service that is not ours: of another version, or on a machine whose clock is wrong; as far as `copal` sees of it.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    thread,
};

/// Listens until the test's process ends.
pub(crate) struct OtherService(SocketAddr);

impl OtherService {
    /// One that says this version and, in each answer, this time of its clock; its lists have fields nobody knows.
    pub(crate) fn start(version: &'static str, date: Option<String>) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        thread::spawn(move || {
            for connection in socket.incoming().flatten() {
                let mut reader = BufReader::new(connection.try_clone().unwrap());
                let mut first = String::new();
                let _ = reader.read_line(&mut first);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                    line.clear();
                }
                let body = match () {
                    () if first.contains("openapi") => format!(r#"{{"info": {{"version": "{version}"}}}}"#),
                    () if first.contains("healthz") => "ok".into(),
                    () if first.contains("/me ") => r#"{"id": 1, "username": "ann"}"#.into(),
                    () => r#"{"count": 1, "results": [{"brave": "new world"}]}"#.into(),
                };
                let date = date.as_ref().map(|date| format!("Date: {date}\r\n")).unwrap_or_default();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{date}Connection: close\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = (&connection).write_all(answer.as_bytes());
            }
        });
        Self(address)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0)
    }
}
