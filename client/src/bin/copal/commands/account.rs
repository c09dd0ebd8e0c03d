//! `copal register|login|logout|whoami`

use std::{
    fs,
    time::{Duration, Instant},
};

use copal_client::{Client, ClientError, Credentials, api::is_loopback, credentials::CredentialsError};
use copal_schemas::{problem::ErrorCode, user::User};
use secrecy::{ExposeSecret, SecretString};
use url::Url;
use uuid::Uuid;

use crate::{
    args::account::{Enter, Login},
    context::Context,
    failure::{Failure, Result, describe},
    prompt,
    table::{Table, cell},
};

/// Where `copal-server` listens when nothing else is said.
const DEFAULT_URL: &str = "http://127.0.0.1:8642";

/// How long an approval is waited for where the service names no time.
const DEVICE_PATIENCE: Duration = Duration::from_secs(300);

pub(super) async fn register(context: Context, enter: &Enter) -> Result<()> {
    let client = anonymous(enter)?;
    let username = prompt::username(&enter.account)?;
    let password = prompt::password(&enter.account, true)?;
    let user = client.register(&username, password.expose_secret()).await.map_err(|error| match error.code() {
        Some(ErrorCode::Conflict) => Failure::new(format!("the username {username:?} is taken at {}", client.base()))
            .hint("choose another one, or run `copal login` if it is yours"),
        Some(ErrorCode::Forbidden) => Failure::new(format!("{} takes no registrations", client.base()))
            .hint("ask whoever runs the service for an account"),
        _ => error.into(),
    })?;
    let credentials = enter_service(&client, &username, &password).await?;
    context.out.talk(&format!("Registered and logged in as {username} at {}.", credentials.api_root));
    if context.out.is_data() { context.out.value(&user) } else { Ok(()) }
}

pub(super) async fn login(context: Context, login: &Login) -> Result<()> {
    let enter = &login.enter;
    let client = anonymous(enter)?;
    let credentials = if login.device {
        approve_in_browser(context, &client).await?
    } else {
        let username = prompt::username(&enter.account)?;
        let password = prompt::password(&enter.account, false)?;
        enter_service(&client, &username, &password).await?
    };
    let until = match &credentials.refresh_token {
        // It goes on as long as it is used.
        Some(_) => String::new(),
        None => format!(" until {}", context.clock.local(credentials.token_expiry)),
    };
    context.out.talk(&format!("Logged in as {} at {}{until}.", credentials.username, credentials.api_root));
    if context.out.is_data() {
        let user = Client::from_credentials(&credentials)?.whoami().await?;
        return context.out.value(&user);
    }
    Ok(())
}

/// Ends the login at the service and deletes its file. Agents and launchers go on: they have logins of their own.
pub(super) async fn logout(context: Context) -> Result<()> {
    let path = Credentials::path();
    let untold = match Credentials::load() {
        Ok(credentials) => end_login(&credentials).await.err(),
        Err(CredentialsError::Missing(_)) => {
            context.out.talk("Nobody was logged in.");
            return Ok(());
        }
        // A file that can't be used names no login, and must go all the same.
        Err(_) => None,
    };
    fs::remove_file(&path).map_err(|error| Failure::new(format!("can't delete {}: {error}", path.display())))?;
    context.out.talk(&format!("Logged out: {} is deleted.", path.display()));
    if let Some(error) = untold {
        context.out.talk(&format!(
            "The service could not be told, so that copies of the file still work there: {}.",
            describe(&error)
        ));
    }
    Ok(())
}

async fn end_login(credentials: &Credentials) -> std::result::Result<(), ClientError> {
    let token = credentials.refresh_token.as_ref().unwrap_or(&credentials.token);
    Client::new(&credentials.api_root, None)?.revoke(token).await
}

pub(super) async fn whoami(context: Context) -> Result<()> {
    let credentials = Credentials::load()?;
    let user = context.client()?.whoami().await?;
    let lapses = credentials.refresh_token.is_none().then(|| context.clock.both(credentials.token_expiry));
    context.out.data(&user, "", || whoami_table(&user, &credentials.api_root, lapses))
}

/// `lapses`: when the token does, where nothing renews it.
fn whoami_table(user: &User, service: &Url, lapses: Option<String>) -> Table {
    let mut table = Table::bare();
    table.field("User", cell(&user.username));
    table.field("Service", cell(service));
    table.field("Token", cell(lapses.map_or_else(|| "renews itself".into(), |time| format!("lapses {time}"))));
    table
}

/// A client without a token of the service that is meant.
fn anonymous(enter: &Enter) -> Result<Client> {
    let url = match &enter.url {
        Some(url) => url.clone(),
        // Whoever logs in again means the same service.
        None => match Credentials::load() {
            Ok(credentials) => credentials.api_root,
            Err(_) => Url::parse(DEFAULT_URL).map_err(|error| Failure::new(error.to_string()))?,
        },
    };
    check_url(&url, enter.allow_insecure)?;
    Ok(Client::new(&url, None)?)
}

/// Refuses what is no address of a service, and plain http over a network.
fn check_url(url: &Url, allow_insecure: bool) -> Result<()> {
    match url.scheme() {
        "https" => Ok(()),
        "http" if allow_insecure || is_loopback(url) => Ok(()),
        "http" => Err(Failure::usage(format!("{url} would send the password over the network in the clear"))
            .hint("use https, or add --allow-insecure if the network can be trusted")),
        other => Err(Failure::usage(format!("{url} is no address of a service: the scheme is {other}"))
            .hint("write it as https://HOST or http://127.0.0.1:8642")),
    }
}

/// Logs in and stores the token.
async fn enter_service(client: &Client, username: &str, password: &SecretString) -> Result<Credentials> {
    let token =
        client.login(username, password.expose_secret()).await.map_err(|error| wrong_password(error, client))?;
    let credentials = Credentials::new(Credentials::path(), client.base().clone(), username.into(), token);
    credentials.save()?;
    Ok(credentials)
}

/// Logs in by a code that the user approves in a browser, and stores the token.
async fn approve_in_browser(context: Context, client: &Client) -> Result<Credentials> {
    let program = Uuid::new_v4();
    let start = client.start_device_login(program).await.map_err(|error| match error.code() {
        Some(ErrorCode::NotFound) => Failure::new(format!("{} has no login by browser", client.base()))
            .hint("leave --device out and log in with your password"),
        _ => error.into(),
    })?;
    context.out.talk(&format!(
        "Open {} in a browser and approve the code {}.",
        start.verification_uri_complete, start.user_code
    ));
    let lapses = Instant::now() + Duration::try_from_secs_f64(start.expires_in).unwrap_or(DEVICE_PATIENCE);
    let pause = Duration::try_from_secs_f64(start.interval).unwrap_or(Duration::from_secs(3));
    let token = loop {
        tokio::time::sleep(pause).await;
        match client.finish_device_login(program, &start.device_code).await {
            Ok(Some(token)) => break token,
            Ok(None) if Instant::now() < lapses => {}
            Err(error) if error.is_transient() && Instant::now() < lapses => {}
            Ok(None) => return Err(not_approved("nobody approved the login in time")),
            Err(error) => {
                return Err(match error.code() {
                    Some(ErrorCode::Forbidden) => not_approved("the login was denied in the browser"),
                    Some(ErrorCode::Conflict) => not_approved("nobody approved the login in time"),
                    _ => error.into(),
                });
            }
        }
    };
    let known = Client::new(client.base(), Some(token.access_token.clone().into()))?;
    let username = known.whoami().await?.username;
    let credentials = Credentials::new(Credentials::path(), client.base().clone(), username, token);
    credentials.save()?;
    Ok(credentials)
}

fn not_approved(what: &str) -> Failure {
    Failure::new(what).hint("run `copal login --device` again")
}

fn wrong_password(error: ClientError, client: &Client) -> Failure {
    match error.code() {
        Some(ErrorCode::Unauthenticated) => {
            Failure::new(format!("the username or the password is wrong at {}", client.base()))
                .hint("try again, or make an account with `copal register`")
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::at_both_widths;

    #[test]
    fn a_user_is_shown_with_the_end_of_the_token() {
        let user: User = serde_json::from_value(serde_json::json!({"id": 1, "username": "ann"})).unwrap();
        let service = Url::parse("https://copal.example.org/").unwrap();
        let told = "in 2h (2026-11-30 14:00:00)".to_owned();
        insta::assert_snapshot!(at_both_widths(|| whoami_table(&user, &service, Some(told.clone()))));
    }

    #[test]
    fn passwords_go_in_the_clear_to_this_machine_only() {
        let check = |url: &str, allow| check_url(&url.parse().unwrap(), allow).is_ok();
        for url in ["http://127.0.0.1:8642", "http://localhost/x", "http://[::1]:1", "https://copal.example.org"] {
            assert!(check(url, false), "{url}");
        }
        for url in ["http://copal.example.org", "http://10.0.0.1", "http://127.0.0.1.example.org", "ftp://localhost"] {
            assert!(!check(url, false), "{url}");
        }
        assert!(check("http://10.0.0.1", true));
        assert!(!check("ftp://10.0.0.1", true));
    }
}
