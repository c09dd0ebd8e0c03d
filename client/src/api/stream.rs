//! `GET /events/stream`: the user's changes as they happen, as server-sent events
//! (WHATWG HTML, section 9.2).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use copal_schemas::{SiteId, StringMap, event::Change};
use futures_util::{Stream, StreamExt, stream::BoxStream};
use reqwest::{Method, header::ACCEPT};

use super::{Client, ClientError};

/// The service writes at least a comment line every 15 s. A stream that is silent for longer than this hangs on a dead
/// connection, such as a firewall leaves behind.
const SILENCE: Duration = Duration::from_secs(50);

/// Which changes are meant; nothing set means all.
#[derive(Clone, Debug, Default)]
pub struct StreamQuery {
    /// At these Sites.
    pub site_ids: Vec<SiteId>,
    /// Of Jobs with all of these tags; BatchJobs and Sites are not filtered by it.
    pub tags: StringMap,
    /// `job`, `batch_job`, `site`.
    pub kinds: Vec<&'static str>,
}

/// Changes as they arrive. Ends when the service goes away; [`ChangeStream::last_event_id`] then
/// says where to go on.
pub struct ChangeStream {
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    url: url::Url,
    buffer: BytesMut,
    last_event_id: Option<String>,
}

impl Client {
    /// Opens the stream, after `last_event_id` where that is given, else from now on.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn stream(
        &self,
        query: &StreamQuery,
        last_event_id: Option<String>,
    ) -> Result<ChangeStream, ClientError> {
        let mut pairs: Vec<(&str, String)> = query.site_ids.iter().map(|id| ("site_id", id.to_string())).collect();
        pairs.extend(query.tags.iter().map(|(key, value)| ("tags", format!("{key}:{value}"))));
        pairs.extend(query.kinds.iter().map(|kind| ("kind", (*kind).to_owned())));
        let mut request = self.request(Method::GET, "events/stream").query(&pairs).header(ACCEPT, "text/event-stream");
        if let Some(id) = &last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        // The stream lives as long as both sides want; the service's comment lines show that it does.
        let answer = self.send(request.timeout(Duration::from_secs(60 * 60 * 24))).await?;
        let url = answer.url().clone();
        Ok(ChangeStream { body: answer.bytes_stream().boxed(), url, buffer: BytesMut::new(), last_event_id })
    }
}

impl ChangeStream {
    /// The id of the last change, for the next [`Client::stream`].
    #[must_use]
    pub fn last_event_id(&self) -> Option<String> {
        self.last_event_id.clone()
    }

    /// The next change; `None` when the service closed the stream or went silent.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] when the connection broke.
    pub async fn next(&mut self) -> Result<Option<Change>, ClientError> {
        loop {
            while let Some(record) = self.take_record() {
                if let Some(change) = self.read_record(&record) {
                    return Ok(Some(change));
                }
            }
            let Ok(read) = tokio::time::timeout(SILENCE, self.body.next()).await else { return Ok(None) };
            match read {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(source)) => return Err(ClientError::Unreachable { url: self.url.clone(), source }),
                None => return Ok(None),
            }
        }
    }

    /// The stream as a `Stream`, for `select!` and combinators.
    pub fn changes(&mut self) -> impl Stream<Item = Result<Change, ClientError>> + '_ {
        futures_util::stream::unfold(self, |stream| async move {
            stream.next().await.transpose().map(|change| (change, stream))
        })
    }

    fn take_record(&mut self) -> Option<Bytes> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        Some(self.buffer.split_to(end + 2).freeze())
    }

    /// A record without data (a comment, a bare id) or of a kind this version does not know is `None`.
    fn read_record(&mut self, record: &[u8]) -> Option<Change> {
        let mut data = String::new();
        for line in String::from_utf8_lossy(record).lines() {
            if let Some(id) = line.strip_prefix("id:") {
                self.last_event_id = Some(id.trim().to_owned());
            } else if let Some(text) = line.strip_prefix("data:") {
                data.push_str(text.strip_prefix(' ').unwrap_or(text));
            }
        }
        serde_json::from_str(&data).ok()
    }
}
