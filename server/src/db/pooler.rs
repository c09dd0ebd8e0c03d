//! Finds out whether the database is reached through a pooler that gives each transaction another connection, as
//! pgbouncer does with `pool_mode = transaction`. Notifications, prepared statements and settings live in a connection, so
//! they would get lost, some of them silently.

use std::time::Duration;

use anyhow::{Context as _, bail};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgConnectOptions, raw_sql};

/// What a connection remembers is asked again after this at most: a pool of one connection would never answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Closes the connection, which is a new one, when it is one to Postgres from end to end.
///
/// # Errors
/// When it is not, with the remedy.
pub(super) async fn refuse_by_transaction(mut first: PgConnection, options: &PgConnectOptions) -> anyhow::Result<()> {
    let broken = "the connection to Postgres broke while it was tried out";
    let word = format!("{:016x}", rand::random::<u64>());
    // By the simple protocol, which every pooler understands.
    raw_sql(AssertSqlSafe(format!("set copal.word = '{word}'"))).execute(&mut first).await.context(broken)?;
    let mut second = PgConnection::connect_with(options).await.context(broken)?;
    // The pooler has one connection that is idle, which the word was said on: it must take it for this transaction.
    let began = raw_sql("begin").execute(&mut second).await;
    let heard_by_second = word_of(&mut second).await.unwrap_or_default() == word;
    let kept = tokio::time::timeout(ANSWER_LIMIT, word_of(&mut first)).await;
    let kept_by_first = matches!(kept, Ok(Ok(heard)) if heard == word);
    // Dropping a connection closes it, too.
    let _ = second.close().await;
    if began.is_err() || heard_by_second || !kept_by_first {
        bail!(
            "Postgres is reached through a pooler that changes connections between transactions (pgbouncer: pool_mode = \
             transaction or statement), where notifications and prepared statements get lost; give copal-server the \
             address of Postgres itself, or of a pool with pool_mode = session"
        );
    }
    first.close().await.context(broken)
}

/// What the connection was told.
async fn word_of(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    let rows = raw_sql("select coalesce(current_setting('copal.word', true), '')").fetch_one(connection).await?;
    rows.try_get(0)
}
