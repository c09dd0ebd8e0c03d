//! `WS /subscribe-user` (contract, section 4): the user's changes as JSON messages of a WebSocket (RFC 6455), for
//! clients that were written for Balsam. Copal's own use `GET /events/stream`, which resumes and filters.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, rt, web};
use actix_ws::{CloseCode, CloseReason, Message, MessageStream, Session};
use bytes::Bytes;
use copal_schemas::{
    event::Change,
    problem::{ErrorCode, Problem},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use super::stream::{Framing, PIECES_KEPT, Stream};
use crate::{
    app::Shared,
    error::{ApiError, ApiResult},
    extract::CurrentUser,
    feed::{self, Entry, StreamFilter},
};

/// The most bytes of a client's frame; it has only a token to send.
const MAX_FRAME_BYTES: usize = 16 << 10;
/// How long a client may take to send its token.
const TOKEN_WAIT: Duration = Duration::from_secs(30);

/// Pushes the user's changes as messages `{action, type, data}`, after a first message of the client's that is its
/// access token. `type` is event (a Job's change of state), batch-job or site; `action` is create for events, else update
/// or delete. A bad token closes the socket with code 1008.
#[utoipa::path(get, path = "/subscribe-user", tag = "events", security(()), responses(
    (status = 101, description = "The connection is a WebSocket now"),
    (status = 422, description = "No WebSocket was asked for", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn subscribe_user(
    shared: web::Data<Shared>,
    request: HttpRequest,
    body: web::Payload,
) -> ApiResult<HttpResponse> {
    let (answer, session, messages) = actix_ws::handle(&request, body).map_err(|error| {
        let loc = vec!["header".into(), "Upgrade".into()];
        ApiError::invalid_at(loc, format!("{error}; open this path as a WebSocket"))
    })?;
    rt::spawn(serve(shared.as_ref().clone(), session, messages.max_frame_size(MAX_FRAME_BYTES)));
    Ok(answer)
}

async fn serve(shared: Shared, mut session: Session, mut messages: MessageStream) {
    let user = match timeout(TOKEN_WAIT, first_text(&mut messages)).await {
        Ok(Some(token)) => shared.keys.verify(&shared.pool, token.trim()).await,
        Ok(None) => return,
        Err(_) => Err(ApiError::unauthenticated("no token came")),
    };
    let started = match user {
        Ok(user) => feed::start_position(&shared.pool).await.map(|position| (user, position)),
        Err(error) => Err(error),
    };
    let (user, position) = match started {
        Ok(started) => started,
        Err(error) => {
            let code = match error.code() {
                ErrorCode::Unauthenticated | ErrorCode::Forbidden => CloseCode::Policy,
                _ => CloseCode::Error,
            };
            drop(session.close(Some(CloseReason { code, description: Some(error.problem().detail.clone()) })).await);
            return;
        }
    };
    let (out, mut pieces) = mpsc::channel(PIECES_KEPT);
    let filter = StreamFilter { only_site: CurrentUser::site(&user), ..StreamFilter::default() };
    let stream = Stream { shared, user, filter, position, framing: Framing::WebSocket, out };
    rt::spawn(stream.run());
    loop {
        let sent = tokio::select! {
            piece = pieces.recv() => match piece {
                Some(piece) => send(&mut session, piece).await,
                None => break,
            },
            message = messages.next() => match message {
                Some(Ok(Message::Ping(bytes))) => session.pong(&bytes).await,
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => Ok(()),
            },
        };
        if sent.is_err() {
            return;
        }
    }
    drop(session.close(None).await);
}

async fn first_text(messages: &mut MessageStream) -> Option<String> {
    loop {
        match messages.next().await?.ok()? {
            Message::Text(text) => return Some(text.to_string()),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

/// A piece is one message; an empty one shows that both ends live.
async fn send(session: &mut Session, piece: Bytes) -> Result<(), actix_ws::Closed> {
    if piece.is_empty() {
        return session.ping(&[]).await;
    }
    session.text(String::from_utf8_lossy(&piece).into_owned()).await
}

/// A change as Balsam's clients read it.
pub(super) fn message(entry: &Entry) -> Option<String> {
    let (action, kind, data): (_, _, Value) = match serde_json::from_str(&entry.json).ok()? {
        Change::Job { event, .. } => ("create", "event", json!(event)),
        Change::BatchJob { batch_job } => ("update", "batch-job", json!(batch_job)),
        Change::BatchJobDeleted { batch_job_id, .. } => ("delete", "batch-job", json!({"id": batch_job_id})),
        Change::Site { site } => ("update", "site", json!(site)),
        Change::SiteDeleted { site_id } => ("delete", "site", json!({"id": site_id})),
    };
    Some(json!({"action": action, "type": kind, "data": data}).to_string())
}
