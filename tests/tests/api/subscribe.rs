//! `WS /subscribe-user` (contract, section 4): a token first, then the user's changes.

use copal_tests::{World, api::Api, id, wait::LIMIT};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A socket that has sent this as its first message.
async fn subscribe(world: &World, token: &str) -> Socket {
    let url = format!("{}/subscribe-user", world.user.base().trim_end_matches('/').replacen("http", "ws", 1));
    let (mut socket, _) = connect_async(url).await.unwrap();
    socket.send(Message::text(token)).await.unwrap();
    socket
}

/// The next message that is no ping.
async fn next(socket: &mut Socket) -> Message {
    loop {
        let message = tokio::time::timeout(LIMIT, socket.next()).await.unwrap().unwrap().unwrap();
        if !matches!(message, Message::Ping(_) | Message::Pong(_)) {
            return message;
        }
    }
}

async fn pushed(socket: &mut Socket) -> Value {
    serde_json::from_str(next(socket).await.to_text().unwrap()).unwrap()
}

/// Changes the Site until the socket tells of it: a stream begins some time after its token was sent.
async fn awake(socket: &mut Socket, user: &Api, site: i64) {
    loop {
        user.put(&format!("/sites/{site}"), &json!({"path": "/awake"})).await.ok();
        let told = tokio::time::timeout(std::time::Duration::from_millis(200), pushed(socket)).await;
        if told.is_ok_and(|change| change["type"] == "site") {
            return;
        }
    }
}

/// The next push that is not of a Site.
async fn of_others(socket: &mut Socket) -> Value {
    loop {
        let change = pushed(socket).await;
        if change["type"] != "site" {
            return change;
        }
    }
}

#[tokio::test]
async fn changes_are_pushed_to_whoever_sent_a_token() {
    let world = World::new().await;
    let user = &world.user;
    let mut socket = subscribe(&world, user.token().unwrap()).await;
    awake(&mut socket, user, world.site).await;

    let job = id(&world.plain_job(&json!({})).await);
    for state in ["STAGED_IN", "PREPROCESSED"] {
        let change = of_others(&mut socket).await;
        assert_eq!((&change["action"], &change["type"]), (&json!("create"), &json!("event")));
        assert_eq!((&change["data"]["job_id"], &change["data"]["to_state"]), (&json!(job), &json!(state)));
    }
    let batch_job = user.batch_job(world.site, &json!({})).await;
    let change = of_others(&mut socket).await;
    let shown = user.get(&format!("/batch-jobs/{batch_job}")).await.ok();
    assert_eq!(change, json!({"action": "update", "type": "batch-job", "data": shown}));
    user.delete(&format!("/batch-jobs/{batch_job}")).await.deleted();
    let change = of_others(&mut socket).await;
    assert_eq!(change, json!({"action": "delete", "type": "batch-job", "data": {"id": batch_job}}));
    user.delete(&format!("/sites/{}", world.site)).await.deleted();
    loop {
        let change = pushed(&mut socket).await;
        if change["action"] == "delete" {
            assert_eq!(change, json!({"action": "delete", "type": "site", "data": {"id": world.site}}));
            break;
        }
    }
}

#[tokio::test]
async fn nobody_hears_of_others() {
    let world = World::new().await;
    let other = world.service.user("bob").await;
    let other_site = other.site("bobs").await;
    let mut socket = subscribe(&world, world.user.token().unwrap()).await;
    awake(&mut socket, &world.user, world.site).await;
    other.batch_job(other_site, &json!({})).await;
    let own = world.user.batch_job(world.site, &json!({})).await;
    assert_eq!(of_others(&mut socket).await["data"]["id"], own);
}

#[tokio::test]
async fn a_bad_token_closes_the_socket_with_1008() {
    let world = World::new().await;
    for token in ["", "nonsense", "a.b.c"] {
        let mut socket = subscribe(&world, token).await;
        let Message::Close(Some(frame)) = next(&mut socket).await else { panic!("{token:?} was taken") };
        assert_eq!(u16::from(frame.code), 1008);
    }
    world.user.get("/subscribe-user").await.refused(422);
}
