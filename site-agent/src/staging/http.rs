//! `http(s)://host/folder`: files of a web server, fetched by GET and sent by PUT. What was cut goes on where it
//! was, as long as the server says that the file is still the same (RFC 9110, sections 13.1.5 and 14). Checked by length, and
//! by the digest where the server gives one (RFC 9530, RFC 3230, Content-MD5). Data go through in pieces, so memory stays flat.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use copal_schemas::transfer::Direction;
use futures_util::{Stream, StreamExt, stream};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    header::{self, HeaderMap, HeaderName},
};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncWriteExt},
};
use url::Url;

use super::{
    Adapter, Batch, Cause, Item, Run, StagingError,
    authorities::{self, Authorities},
};

/// Files that are carried at the same time.
const STREAMS: usize = 8;
/// Read and written at a time.
const PIECE: usize = 512 * 1024;

/// The adapter of `http:` and `https:` locations.
#[derive(Clone, Copy, Debug)]
pub struct Http;

impl Adapter for Http {
    async fn carry(&self, batch: &Batch, run: &Run) -> Result<(), StagingError> {
        let peer = Peer::new(batch, run)?;
        let work = stream::iter(&batch.items).for_each_concurrent(STREAMS, |item| {
            let peer = &peer;
            async move {
                let outcome = match batch.direction {
                    _ if item.recursive => Err(StagingError::new(
                        Cause::Settings,
                        "http has no folders; name single files, or use another kind of location",
                    )),
                    Direction::In => peer.fetch(item, &batch.scratch).await,
                    Direction::Out => peer.send(item).await,
                };
                match outcome {
                    Ok(bytes) => run.arrived(item.id, bytes),
                    Err(error) => run.failed(item.id, error),
                }
            }
        });
        tokio::select! {
            () = run.stop.cancelled() => Err(StagingError::stopped()),
            () = work => Ok(()),
        }
    }
}

/// A web server.
struct Peer {
    client: Client,
    base: Url,
    alias: String,
    login: Login,
}

enum Login {
    None,
    Token(secrecy::SecretString),
    Password(secrecy::SecretString, secrecy::SecretString),
}

/// What is known about a part of a file that is kept for the next try.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Validator {
    /// A strong ETag, or Last-Modified: by it the server knows whether the file is still the same.
    tag: String,
}

impl Peer {
    fn new(batch: &Batch, run: &Run) -> Result<Self, StagingError> {
        let location = &batch.location;
        let stall = Duration::try_from_secs_f64(run.settings.stall_timeout_sec).unwrap_or(Duration::from_secs(60));
        let client = Client::builder()
            .connect_timeout(stall)
            .read_timeout(stall)
            .tls_certs_merge(Authorities::of(&run.site, &run.settings)?.for_web()?)
            .user_agent(concat!("copal/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| StagingError::new(Cause::Local, format!("no web client: {error}")))?;
        let mut secrets = run.secrets.of(&location.alias)?;
        let login = match (secrets.remove("token"), secrets.remove("username"), secrets.remove("password")) {
            (Some(token), ..) => Login::Token(token),
            (None, Some(user), Some(password)) => Login::Password(user, password),
            _ => Login::None,
        };
        if !matches!(login, Login::None) {
            location.check_secrecy()?;
        }
        let mut base = location.url.clone();
        base.set_query(None);
        base.set_fragment(None);
        Ok(Self { client, base, alias: location.alias.clone(), login })
    }

    fn url(&self, item: &Item) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            // Each name is encoded here, so that no name is anything else than a name.
            path.clear().extend(item.remote.split('/').skip(1));
        }
        url
    }

    fn authorised(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.login {
            Login::None => request,
            Login::Token(token) => request.bearer_auth(token.expose_secret()),
            Login::Password(user, password) => request.basic_auth(user.expose_secret(), Some(password.expose_secret())),
        }
    }

    /// Gets a file; goes on with a part that an earlier try left. Gives its size in bytes.
    async fn fetch(&self, item: &Item, scratch: &Path) -> Result<u64, StagingError> {
        let url = self.url(item);
        let part = Part::at(scratch, item);
        let (have, validator) = part.kept();
        // Encoded bodies have neither the length nor the digest of the file.
        let mut request = self.authorised(self.client.get(url.clone())).header(header::ACCEPT_ENCODING, "identity");
        if let Some(validator) = &validator {
            request = request
                .header(header::RANGE, format!("bytes={have}-"))
                .header(header::IF_RANGE, validator.tag.as_str());
        }
        let response = request.send().await.map_err(|error| authorities::explain(&url, &error))?;
        let status = response.status();
        let headers = response.headers().clone();
        let start = match status {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT if range_start(&headers) == Some(have) => have,
            // What is there is not what the server has now: from the start, at the next try.
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                part.forget();
                let message = format!("{url}: the server can't go on at byte {have}; it starts anew");
                return Err(StagingError::new(Cause::Network, message));
            }
            status => return Err(self.refused(&url, status, Direction::In)),
        };
        let total = if start > 0 { range_total(&headers) } else { response.content_length() };
        part.begin(start, &headers).map_err(|error| StagingError::writing(part.path.display(), &error))?;
        part.write(response, start, &url).await?;
        let size = fs::metadata(&part.path).map_err(|error| StagingError::reading(part.path.display(), &error))?.len();
        if let Some(total) = total.filter(|total| *total != size) {
            part.forget();
            let message = format!("{url} has {total} bytes, and {size} arrived");
            return Err(StagingError::new(Cause::Checksum, message));
        }
        if let Some(wanted) = Fingerprint::given(&headers, start == 0) {
            let found = wanted.of(&part.path).await.map_err(|error| StagingError::reading(&url, &error))?;
            if !found {
                part.forget();
                let message = format!("what arrived from {url} is not what its digest says");
                return Err(StagingError::new(Cause::Checksum, message));
            }
        }
        fs::rename(&part.path, &item.local).map_err(|error| StagingError::writing(item.local.display(), &error))?;
        part.forget();
        Ok(size)
    }

    /// Sends a file, and asks the server what it has then. Gives its size in bytes.
    async fn send(&self, item: &Item) -> Result<u64, StagingError> {
        let url = self.url(item);
        let reading = |error: io::Error| StagingError::reading(item.local.display(), &error);
        let file = File::open(&item.local).await.map_err(reading)?;
        let size = file.metadata().await.map_err(reading)?.len();
        let body = reqwest::Body::wrap_stream(pieces(file));
        let request = self
            .authorised(self.client.put(url.clone()))
            .header(header::CONTENT_LENGTH, size)
            .header(header::CONTENT_TYPE, "application/octet-stream");
        let response = request.body(body).send().await.map_err(|error| authorities::explain(&url, &error))?;
        if !response.status().is_success() {
            return Err(self.refused(&url, response.status(), Direction::Out));
        }
        let request = self.authorised(self.client.head(url.clone())).header(header::ACCEPT_ENCODING, "identity");
        let look = request.send().await.map_err(|error| authorities::explain(&url, &error))?;
        if !look.status().is_success() {
            // Some servers take files that they don't give.
            return Ok(size);
        }
        let length = look.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let fits = match Fingerprint::given(look.headers(), true) {
            Some(wanted) => wanted.of(&item.local).await.map_err(reading)?,
            None => true,
        };
        if length.is_some_and(|length: u64| length != size) || !fits {
            let message = format!("{url} is not what was sent to it");
            return Err(StagingError::new(Cause::Checksum, message));
        }
        Ok(size)
    }

    fn refused(&self, url: &Url, status: StatusCode, direction: Direction) -> StagingError {
        let login = format!("give {} a token, or a username and a password, in transfers.credentials_file", self.alias);
        let (cause, remedy) = match status.as_u16() {
            401 | 403 | 407 => (Cause::Permission, login),
            404 | 410 => match direction {
                Direction::In => (Cause::MissingSource, "is the path right?".into()),
                Direction::Out => (Cause::Destination, "is there such a folder?".into()),
            },
            413 | 507 => (Cause::Full, "the server has no room for it".into()),
            405 | 501 => (Cause::Destination, "the server takes no files".into()),
            409 | 412 => (Cause::Destination, "is there such a folder?".into()),
            408 | 425 | 429 | 500..=599 => (Cause::Network, "it is tried again".into()),
            _ => (Cause::Settings, "is the location's URL right?".into()),
        };
        StagingError::new(cause, format!("{url} answers {status}; {remedy}"))
    }
}

/// A file that is being fetched, and what makes it possible to go on.
struct Part {
    path: PathBuf,
    validator: PathBuf,
}

impl Part {
    fn at(scratch: &Path, item: &Item) -> Self {
        let path = |end: &str| scratch.join(format!("{}.{end}", item.id));
        Self { path: path("part"), validator: path("json") }
    }

    /// How much is there, and by what the server knows whether it is of the same file.
    fn kept(&self) -> (u64, Option<Validator>) {
        let size = fs::metadata(&self.path).map_or(0, |meta| meta.len());
        let validator = fs::read(&self.validator).ok().and_then(|text| serde_json::from_slice(&text).ok());
        (size, validator.filter(|_| size > 0))
    }

    /// Makes ready for data from this byte on.
    fn begin(&self, start: u64, headers: &HeaderMap) -> io::Result<()> {
        if start > 0 {
            return Ok(());
        }
        self.forget();
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        // A weak ETag does not promise the same bytes.
        let tag = text(header::ETAG).filter(|tag| !tag.starts_with("W/")).or_else(|| text(header::LAST_MODIFIED));
        match tag {
            Some(tag) => fs::write(&self.validator, serde_json::to_vec(&Validator { tag })?),
            None => Ok(()),
        }
    }

    async fn write(&self, response: Response, start: u64, url: &Url) -> Result<(), StagingError> {
        let writing = |error: io::Error| StagingError::writing(self.path.display(), &error);
        let mut file = File::options().create(true).append(true).open(&self.path).await.map_err(writing)?;
        file.set_len(start).await.map_err(writing)?;
        file.set_max_buf_size(PIECE);
        let mut body = response.bytes_stream();
        let outcome = loop {
            match body.next().await {
                Some(Ok(bytes)) => file.write_all(&bytes).await.map_err(writing)?,
                Some(Err(error)) => break Err(authorities::explain(url, &error)),
                None => break Ok(()),
            }
        };
        // What is there serves the next try, also after a cut.
        file.flush().await.map_err(writing)?;
        outcome
    }

    fn forget(&self) {
        let _ = fs::remove_file(&self.validator);
        let _ = fs::remove_file(&self.path);
    }
}

/// What a server says about the content of a file.
#[derive(Debug, PartialEq)]
enum Fingerprint {
    Sha256(Vec<u8>),
    Md5(Vec<u8>),
}

impl Fingerprint {
    /// Out of the headers of an answer; `whole` when its body is the whole file.
    fn given(headers: &HeaderMap, whole: bool) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let decoded = |value: &str| BASE64.decode(value.trim().trim_matches(':')).ok();
        let field = |text: &str, wanted: &str| {
            let mut parts = text.split(',').filter_map(|part| part.trim().split_once('='));
            parts.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).and_then(|(_, value)| decoded(value))
        };
        for name in ["repr-digest", "digest"] {
            if let Some(text) = text(name) {
                let sha = field(text, "sha-256").map(Self::Sha256);
                return sha.or_else(|| field(text, "md5").map(Self::Md5));
            }
        }
        // These are of the body, whatever part of the file that is.
        if !whole {
            return None;
        }
        let sha = text("content-digest").and_then(|text| field(text, "sha-256")).map(Self::Sha256);
        sha.or_else(|| text("content-md5").and_then(decoded).map(Self::Md5))
    }

    /// Whether a file has it.
    async fn of(&self, path: &Path) -> io::Result<bool> {
        match self {
            Self::Sha256(wanted) => Ok(hash::<Sha256>(path).await? == *wanted),
            Self::Md5(wanted) => Ok(hash::<md5::Md5>(path).await? == *wanted),
        }
    }
}

/// A file in pieces, for a body.
fn pieces(file: File) -> impl Stream<Item = io::Result<Vec<u8>>> {
    stream::try_unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE];
        let count = file.read(&mut piece).await?;
        piece.truncate(count);
        Ok((count > 0).then_some((piece, file)))
    })
}

async fn hash<D: Digest + Send>(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path).await?;
    let (mut hash, mut buffer) = (D::new(), vec![0; PIECE]);
    loop {
        let count = file.read(&mut buffer).await?;
        if count == 0 {
            return Ok(hash.finalize().to_vec());
        }
        hash.update(&buffer[..count]);
    }
}

/// `bytes 5-9/10` begins at 5.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// `bytes 5-9/10` is of 10.
fn range_total(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.rsplit_once('/')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn digests_are_read_in_all_their_spellings() {
        let sha = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        let of = |name: &'static str, value: String, whole| {
            let mut map = HeaderMap::new();
            map.insert(HeaderName::from_static(name), value.parse().unwrap());
            Fingerprint::given(&map, whole)
        };
        let is_sha =
            |print: Option<Fingerprint>| matches!(print, Some(Fingerprint::Sha256(bytes)) if bytes.len() == 32);
        assert!(is_sha(of("repr-digest", format!("md5=:x:, sha-256=:{sha}:"), false)));
        assert!(is_sha(of("digest", format!("SHA-256={sha}"), false)));
        assert!(is_sha(of("content-digest", format!("sha-256=:{sha}:"), true)));
        assert_eq!(of("content-digest", format!("sha-256=:{sha}:"), false), None);
        assert!(matches!(of("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==".into(), true), Some(Fingerprint::Md5(_))));
        assert_eq!(of("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==".into(), false), None);
        assert_eq!(of("etag", "\"abc\"".into(), true), None);
    }

    #[test]
    fn ranges_are_read() {
        let of = headers(&[("content-range", "bytes 5-9/10")]);
        assert_eq!((range_start(&of), range_total(&of)), (Some(5), Some(10)));
        let open = headers(&[("content-range", "bytes 5-9/*")]);
        assert_eq!((range_start(&open), range_total(&open)), (Some(5), None));
        assert_eq!(range_start(&headers(&[("content-range", "items 5-9/10")])), None);
    }
}
