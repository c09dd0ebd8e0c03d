//! A small web server over a folder: GET with ranges, HEAD, PUT. It can cut answers in the middle and
//! answer with any status, which real servers do only when nobody looks.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use crate::process::free_port;

/// A web server. Its threads end with the process.
#[derive(Clone, Debug)]
pub struct WebServer {
    folder: PathBuf,
    port: u16,
    rules: Arc<Mutex<Rules>>,
}

#[derive(Debug, Default)]
struct Rules {
    /// Answers to the next requests of a path, first one first.
    answers: HashMap<String, Vec<Odd>>,
    /// Headers of every good answer to a path.
    headers: HashMap<String, String>,
    /// What was asked: method, path, range.
    seen: Vec<(String, String, Option<String>)>,
}

/// An answer that is not the plain one.
#[derive(Clone, Copy, Debug)]
pub enum Odd {
    /// This status and no body.
    Status(u16),
    /// The connection ends after so many bytes of the body.
    CutAfter(u64),
    /// Nothing more comes after so many bytes of the body, until the client hangs up.
    HoldAfter(u64),
}

impl WebServer {
    /// A server of the files in a folder.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn start(folder: &Path) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let server = Self { folder: folder.into(), port, rules: Arc::default() };
        let own = server.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let server = own.clone();
                // A client that hangs up ends its own thread.
                thread::spawn(move || drop(server.serve(&connection)));
            }
        });
        server
    }

    /// `127.0.0.1:port`.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Answers the next request of a path in this way, after those that were ordered before.
    pub fn next(&self, path: &str, odd: Odd) {
        self.rules().answers.entry(path.into()).or_default().push(odd);
    }

    /// Adds a header line to every good answer to a path.
    pub fn header(&self, path: &str, line: &str) {
        self.rules().headers.insert(path.into(), format!("{line}\r\n"));
    }

    /// The requests of a path: method and range.
    #[must_use]
    pub fn seen(&self, path: &str) -> Vec<(String, Option<String>)> {
        let rules = self.rules();
        let of_path = rules.seen.iter().filter(|(_, seen, _)| seen == path);
        of_path.map(|(method, _, range)| (method.clone(), range.clone())).collect()
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, connection: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(connection);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut words = first.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or("/").to_owned());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
                None => break,
            };
        }
        let (odd, extra) = {
            let mut rules = self.rules();
            rules.seen.push((method.clone(), path.clone(), headers.get("range").cloned()));
            let odd = rules.answers.get_mut(&path).filter(|odd| !odd.is_empty()).map(|odd| odd.remove(0));
            (odd, rules.headers.get(&path).cloned().unwrap_or_default())
        };
        let file = self.folder.join(path.trim_start_matches('/'));
        let mut out = connection;
        if method == "PUT" {
            let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
            let mut body = reader.take(length);
            if let Some(Odd::Status(status)) = odd {
                io::copy(&mut body, &mut io::sink())?;
                return empty(out, status);
            }
            let Ok(mut copy) = fs::File::create(&file) else {
                io::copy(&mut body, &mut io::sink())?;
                return empty(out, 409);
            };
            io::copy(&mut body, &mut copy)?;
            return empty(out, 201);
        }
        if let Some(Odd::Status(status)) = odd {
            return empty(out, status);
        }
        let Ok(mut source) = fs::File::open(&file) else { return empty(out, 404) };
        let length = source.metadata()?.len();
        let tag = format!("\"{length}-{}\"", modified(&source)?);
        let is_same = headers.get("if-range").is_none_or(|wanted| *wanted == tag);
        let start = headers
            .get("range")
            .filter(|_| is_same)
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<u64>().ok());
        if start.is_some_and(|start| start >= length) {
            return empty(out, 416);
        }
        let from = start.unwrap_or(0);
        let status = match start {
            Some(start) => format!("206 Partial Content\r\nContent-Range: bytes {start}-{}/{length}", length - 1),
            None => "200 OK".into(),
        };
        write!(
            out,
            "HTTP/1.1 {status}\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n{extra}Connection: close\r\n\r\n",
            length - from
        )?;
        if method == "HEAD" {
            return Ok(());
        }
        source.seek(SeekFrom::Start(from))?;
        let limit = match odd {
            Some(Odd::CutAfter(bytes) | Odd::HoldAfter(bytes)) => bytes,
            _ => u64::MAX,
        };
        io::copy(&mut source.take(limit), &mut out)?;
        if let Some(Odd::HoldAfter(_)) = odd {
            // The client says nothing more, so this ends when it is gone.
            io::copy(&mut reader, &mut io::sink())?;
        }
        Ok(())
    }
}

fn modified(file: &fs::File) -> io::Result<u128> {
    let time = file.metadata()?.modified()?;
    Ok(time.duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_nanos()))
}

fn empty(mut out: &TcpStream, status: u16) -> io::Result<()> {
    write!(out, "HTTP/1.1 {status} Said\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}
