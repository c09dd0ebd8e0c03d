//! A reader of server-sent events (WHATWG HTML, section 9.2) that shows what is on the wire.

use bytes::BytesMut;
use futures_util::{StreamExt as _, stream::BoxStream};
use reqwest::Method;
use serde_json::Value;

use crate::{api::Api, wait::LIMIT};

/// One event of a stream.
#[derive(Debug)]
pub struct Change {
    /// The `event:` field.
    pub event: String,
    /// The `id:` field.
    pub id: String,
    /// The `data:` field.
    pub data: Value,
}

/// An open stream.
pub struct EventStream {
    body: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: BytesMut,
    last_id: Option<String>,
}

impl EventStream {
    /// Opens it; changes from now on arrive, or from after `last_id` on.
    ///
    /// # Panics
    /// When the service refuses.
    pub async fn open(user: &Api, path: &str, last_id: Option<&str>) -> Self {
        let mut request = user.request(Method::GET, path).header("accept", "text/event-stream");
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let answer = request.send().await.expect("the stream opens");
        assert_eq!(answer.status().as_u16(), 200, "{path}: {}", answer.text().await.unwrap_or_default());
        let kind = answer.headers()["content-type"].to_str().expect("a header is text").to_owned();
        assert!(kind.starts_with("text/event-stream"), "{path}: {kind}");
        Self { body: answer.bytes_stream().boxed(), buffer: BytesMut::new(), last_id: last_id.map(Into::into) }
    }

    /// The id of the last change that was read.
    #[must_use]
    pub fn last_id(&self) -> Option<String> {
        self.last_id.clone()
    }

    /// The next change.
    ///
    /// # Panics
    /// When none comes in time, or the stream ends.
    pub async fn next(&mut self) -> Change {
        self.next_or_end().await.expect("the stream goes on")
    }

    /// The next change, or `None` at the stream's end.
    ///
    /// # Panics
    /// When neither comes in time.
    pub async fn next_or_end(&mut self) -> Option<Change> {
        tokio::time::timeout(LIMIT, self.read()).await.expect("a change within the time limit")
    }

    async fn read(&mut self) -> Option<Change> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let record = self.buffer.split_to(end + 2);
                let (mut event, mut id, mut data) = (String::new(), None, String::new());
                for line in String::from_utf8_lossy(&record).lines() {
                    match line.split_once(": ") {
                        Some(("event", value)) => event = value.into(),
                        Some(("id", value)) => id = Some(value.to_owned()),
                        Some(("data", value)) => data.push_str(value),
                        _ => {}
                    }
                }
                if id.is_some() {
                    self.last_id.clone_from(&id);
                }
                if !data.is_empty() {
                    let data = serde_json::from_str(&data).expect("the data of a change is JSON");
                    return Some(Change { event, id: id.unwrap_or_default(), data });
                }
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                // A service that stops may cut the connection instead of ending the body.
                Some(Err(_)) | None => return None,
            }
        }
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("last_id", &self.last_id).finish_non_exhaustive()
    }
}
