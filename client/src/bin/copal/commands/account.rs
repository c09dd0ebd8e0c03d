//! `copal register|login|logout|whoami`

use std::{fs, io};

use copal_client::{Client, ClientError, Credentials, api::is_loopback};
use copal_schemas::{problem::ErrorCode, user::User};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use crate::{
    args::account::Enter,
    context::Context,
    failure::{Failure, Result},
    prompt,
    table::{Table, cell},
};

/// Where `copal-server` listens when nothing else is said.
const DEFAULT_URL: &str = "http://127.0.0.1:8642";

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
    if context.out.is_json() { context.out.json(&user) } else { Ok(()) }
}

pub(super) async fn login(context: Context, enter: &Enter) -> Result<()> {
    let client = anonymous(enter)?;
    let username = prompt::username(&enter.account)?;
    let password = prompt::password(&enter.account, false)?;
    let credentials = enter_service(&client, &username, &password).await?;
    context.out.talk(&format!(
        "Logged in as {username} at {} until {}.",
        credentials.api_root,
        context.clock.local(credentials.token_expiry)
    ));
    if context.out.is_json() {
        let user = Client::from_credentials(&credentials)?.whoami().await?;
        return context.out.json(&user);
    }
    Ok(())
}

pub(super) fn logout(context: Context) -> Result<()> {
    let path = Credentials::path();
    match fs::remove_file(&path) {
        Ok(()) => context.out.talk(&format!("Logged out: {} is deleted.", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => context.out.talk("Nobody was logged in."),
        Err(error) => return Err(Failure::new(format!("can't delete {}: {error}", path.display()))),
    }
    Ok(())
}

pub(super) async fn whoami(context: Context) -> Result<()> {
    let credentials = Credentials::load()?;
    let user = context.client()?.whoami().await?;
    context.out.data(&user, "", || whoami_table(context, &user, &credentials))
}

fn whoami_table(context: Context, user: &User, credentials: &Credentials) -> Table {
    let mut table = Table::bare();
    table.field("User", cell(&user.username));
    table.field("Service", cell(&credentials.api_root));
    table.field("Token", cell(format!("lapses {}", context.clock.both(credentials.token_expiry))));
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
    let credentials = Credentials {
        api_root: client.base().clone(),
        username: username.into(),
        token: token.access_token.into(),
        token_expiry: token.expiration,
    };
    credentials.save()?;
    Ok(credentials)
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
