//! HTTP as far as stand-ins and proxies of tests need it: whole requests, whole answers, a connection each. Who answers
//! what is theirs (`globus.rs`, `gate.rs`).

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

/// How long a peer may take for the next bytes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET` and so on.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Headers, with names in small letters.
    pub headers: HashMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
    /// The lines up to the body, as they came.
    pub head: String,
}

/// Answers requests on a free port until the process ends; gives the port. Answers are status, headers and body.
///
/// # Panics
/// When it can't listen.
pub fn serve<H>(handle: H) -> u16
where
    H: Fn(Request) -> Vec<u8> + Clone + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("a bound socket has an address").port();
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let handle = handle.clone();
            thread::spawn(move || -> io::Result<()> {
                let request = read(&connection)?;
                connection.write_all(&handle(request))
            });
        }
    });
    port
}

/// An answer with a JSON body.
#[must_use]
pub fn json(status: u16, body: &serde_json::Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}").into()
}

/// Sends a request to a port of this machine and gives the whole answer, as it comes.
///
/// # Errors
/// When nobody answers.
pub fn ask(port: u16, head: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.write_all(head.as_bytes())?;
    connection.write_all(body)?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Reads one request.
fn read(connection: &TcpStream) -> io::Result<Request> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(connection);
    let mut head = String::new();
    let mut request = Request::default();
    loop {
        let start = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = head[start..].trim_end();
        if line.is_empty() {
            break;
        }
        if start == 0 {
            let mut words = line.split(' ');
            request.method = words.next().unwrap_or_default().into();
            request.target = words.next().unwrap_or_default().into();
        } else if let Some((name, value)) = line.split_once(':') {
            request.headers.insert(name.to_ascii_lowercase(), value.trim().into());
        }
    }
    let length = request.headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    request.head = head;
    Ok(request)
}
