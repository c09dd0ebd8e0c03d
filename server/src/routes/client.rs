//! What a request tells of the program that sent it: for the limit on logins, for the list of
//! logins, and for links back to the service.

use std::net::IpAddr;

use actix_web::{HttpRequest, http::header};

use crate::app::Shared;

/// The longest description of a program that is kept.
const MAX_CLIENT_LETTERS: usize = 200;

/// The program's address: what the proxy says where the operator trusts one, else the peer's.
pub(super) fn address(shared: &Shared, request: &HttpRequest) -> Option<IpAddr> {
    if shared.config.behind_proxy
        && let Some(told) = request.connection_info().realip_remote_addr()
        && let Ok(address) = told.parse()
    {
        return Some(address);
    }
    request.peer_addr().map(|address| address.ip())
}

/// The program and its address, for people to recognise a login by.
pub(super) fn description(shared: &Shared, request: &HttpRequest) -> String {
    let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("a program");
    let agent: String = agent.chars().filter(|letter| !letter.is_control()).take(MAX_CLIENT_LETTERS).collect();
    match address(shared, request) {
        Some(address) => format!("{agent} at {address}"),
        None => agent,
    }
}

/// The service's own URL as the program sees it, without a slash at the end. Headers of a proxy are
/// believed only where the operator says that there is one.
pub(super) fn own_url(shared: &Shared, request: &HttpRequest) -> String {
    if shared.config.behind_proxy {
        let seen = request.connection_info();
        return format!("{}://{}", seen.scheme(), seen.host());
    }
    let scheme = if shared.config.tls_cert.is_some() { "https" } else { "http" };
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    // HTTP/2 has the host in the request's URI.
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    format!("{scheme}://{}", host.unwrap_or("localhost"))
}
