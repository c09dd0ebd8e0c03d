//! `GET /events/stream`: the user's changes as server-sent events (WHATWG HTML, section 9.2), and the stream behind
//! it, which `subscribe.rs` frames in another way.
//!
//! Each stream is one task that writes into a short channel. A client that reads slowly makes the
//! task wait; what it misses meanwhile is read from the database later, so it costs no memory. One that
//! reads nothing at all loses its connection (see `Config::client_timeout`), and the task ends.

use std::{fmt::Write as _, time::Duration};

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    rt, web,
};
use bytes::Bytes;
use copal_schemas::problem::Problem;
use futures_util::StreamExt as _;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time::{Instant, MissedTickBehavior, interval_at},
};
use tokio_stream::wrappers::ReceiverStream;

use super::subscribe;
use crate::{
    app::Shared,
    error::{ApiError, ApiResult},
    extract::{CurrentUser, QueryParams},
    feed::{self, Entry, Message, Page, Position, Source, StreamFilter},
    metrics,
};

/// A comment line shows that both ends live, and finds clients that are gone; and it is seen whether the login has ended.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Pieces that wait for the client.
pub(super) const PIECES_KEPT: usize = 2;
/// A piece is sent once it is this large: with the ones that wait, the memory that a client can hold.
const PIECE_BYTES: usize = 32 << 10;
/// After a failure of the database.
const RETRY: Duration = Duration::from_secs(1);

/// Streams the user's changes: of Jobs, BatchJobs and Sites.
#[utoipa::path(get, path = "/events/stream", tag = "events", params(
    ("site_id" = Option<Vec<i64>>, Query, description = "At one of these Sites"),
    ("tags" = Option<Vec<String>>, Query, description = "KEY:VALUE, all of which the Jobs have; others are not filtered by it"),
    ("kind" = Option<Vec<String>>, Query, description = "job, batch_job, site"),
    ("Last-Event-ID" = Option<String>, Header, description = "Go on after this id; left out: from now on"),
), responses(
    (status = 200, description = "Server-sent events; `data` is a Change", body = copal_schemas::event::Change, content_type = "text/event-stream"),
    (status = 422, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn stream_events(
    shared: web::Data<Shared>,
    user: CurrentUser,
    request: HttpRequest,
    query: QueryParams,
) -> ApiResult<HttpResponse> {
    let mut sources = Vec::new();
    for kind in query.texts("kind") {
        sources.push(match kind.as_str() {
            "job" => Source::Job,
            "batch_job" => Source::BatchJob,
            "site" => Source::Site,
            other => {
                let msg = format!("one of job, batch_job, site is wanted, not {other:?}");
                return Err(ApiError::invalid_at(vec!["query".into(), "kind".into()], msg));
            }
        });
    }
    let filter = StreamFilter {
        only_site: user.site(),
        site_ids: query.ids("site_id")?,
        tags: query.pairs("tags").into_iter().collect(),
        sources,
    };
    let position = match request.headers().get("Last-Event-ID").filter(|id| !id.is_empty()) {
        // Taken before the answer begins, so that the client misses nothing from then on.
        None => feed::start_position(&shared.pool).await?,
        Some(id) => {
            let loc = || vec!["header".into(), "Last-Event-ID".into()];
            let text = id.to_str().map_err(|error| ApiError::invalid_at(loc(), error.to_string()))?;
            text.parse().map_err(|error: feed::BadPosition| ApiError::invalid_at(loc(), error.to_string()))?
        }
    };
    let (out, pieces) = mpsc::channel(PIECES_KEPT);
    let framing = Framing::ServerSent;
    let stream = Stream { shared: shared.as_ref().clone(), user, filter, position, framing, out };
    rt::spawn(stream.run());
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        // Proxies that buffer would hold events back.
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(ReceiverStream::new(pieces).map(Ok::<Bytes, ApiError>)))
}

/// How changes are put into pieces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Framing {
    /// As server-sent events, several to a piece.
    ServerSent,
    /// As messages of a WebSocket, one to a piece.
    WebSocket,
}

impl Framing {
    /// What a stream begins with.
    fn hello(self, position: &Position) -> Option<String> {
        match self {
            // The id alone lets a client resume even before the first event.
            Self::ServerSent => Some(format!(": copal\nid: {position}\n\n")),
            Self::WebSocket => None,
        }
    }

    fn keep_alive(self) -> Bytes {
        match self {
            Self::ServerSent => Bytes::from_static(b":\n\n"),
            Self::WebSocket => Bytes::new(),
        }
    }

    /// Adds a change to a piece, and says whether the piece is to be sent now.
    fn add(self, piece: &mut String, entry: &Entry, position: impl FnOnce() -> Position) -> bool {
        match self {
            Self::ServerSent => {
                // Writing to a String never fails.
                let _ = write!(piece, "id: {}\nevent: {}\ndata: {}\n\n", position(), entry.name, entry.json);
                piece.len() >= PIECE_BYTES
            }
            Self::WebSocket => {
                *piece = subscribe::message(entry).unwrap_or_default();
                !piece.is_empty()
            }
        }
    }
}

/// One client's stream.
pub(super) struct Stream {
    pub(super) shared: Shared,
    pub(super) user: CurrentUser,
    pub(super) filter: StreamFilter,
    pub(super) position: Position,
    pub(super) framing: Framing,
    pub(super) out: mpsc::Sender<Bytes>,
}

/// Why a stream is over.
struct Over;

impl Stream {
    /// Streams until the client or its login is gone or the service stops.
    pub(super) async fn run(mut self) {
        let _counted = metrics::count_stream();
        if let Some(hello) = self.framing.hello(&self.position)
            && self.out.send(hello.into()).await.is_err()
        {
            return;
        }
        let stop = self.shared.stop.clone();
        let out = self.out.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = out.closed() => {}
            Over = self.follow() => {}
        }
    }

    /// Reads from the database what was missed, then what is handed out to all streams.
    async fn follow(&mut self) -> Over {
        loop {
            // Subscribed before the database is read, so that there is no gap between the two.
            let mut pages = self.shared.feed.pages();
            let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
            keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
            match self.catch_up().await {
                Ok(()) => {}
                Err(Failed::Over) => return Over,
                Err(Failed::Database(error)) => {
                    tracing::warn!("an event stream waits for the database: {error}");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            loop {
                let sent = tokio::select! {
                    message = pages.recv() => match message {
                        Ok(Message::Page(page)) => self.send_live(&page).await,
                        Ok(Message::Lost) | Err(RecvError::Lagged(_)) => break,
                        Err(RecvError::Closed) => return Over,
                    },
                    _ = keep_alive.tick() => self.keep_alive().await,
                };
                match sent {
                    Ok(()) => {}
                    Err(Failed::Over) => return Over,
                    // Nothing of the page was sent; it is read again.
                    Err(Failed::Database(_)) => break,
                }
            }
        }
    }

    async fn keep_alive(&self) -> Result<(), Failed> {
        if self.shared.keys.is_revoked(&self.shared.pool, self.user.login).await? {
            return Err(Failed::Over);
        }
        self.out.send(self.framing.keep_alive()).await.map_err(|_| Failed::Over)
    }

    async fn catch_up(&mut self) -> Result<(), Failed> {
        loop {
            // A page that was begun earlier ends before the pages that are handed out begin.
            let begun = self.position.partly.is_some();
            let (page, next) = feed::catch_up(&self.shared.pool, self.user.id, &self.position).await?;
            self.send(&page, page.entries.iter()).await?;
            self.position = next;
            if page.last && !begun {
                return Ok(());
            }
        }
    }

    /// Sends what the client has not seen of a page that was made for all streams.
    async fn send_live(&mut self, page: &Page) -> Result<(), Failed> {
        let base = self.position.base.clone();
        self.send(page, page.entries.iter().filter(|entry| !base.sees(entry.key.xid))).await?;
        if page.last && page.target.covers(&base) {
            self.position = Position::at(page.target.clone());
        }
        Ok(())
    }

    async fn send(&self, page: &Page, entries: impl Iterator<Item = &Entry>) -> Result<(), Failed> {
        let picked = self.filter.pick(&self.shared.pool, self.user.id, entries).await?;
        if picked.is_empty() {
            return Ok(());
        }
        let mut piece = String::new();
        for entry in picked {
            let position =
                || Position { base: self.position.base.clone(), partly: Some((page.target.clone(), entry.key)) };
            if self.framing.add(&mut piece, entry, position) {
                self.put(std::mem::take(&mut piece)).await?;
            }
        }
        if piece.is_empty() { Ok(()) } else { self.put(piece).await }
    }

    async fn put(&self, piece: String) -> Result<(), Failed> {
        self.out.send(piece.into()).await.map_err(|_| Failed::Over)
    }
}

enum Failed {
    /// The client is gone, or its login has ended.
    Over,
    Database(ApiError),
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Database(error)
    }
}
