//! What a request tells of the program that sent it: for the limit on logins, for the list of
//! logins, and for links back to the service.

use std::net::{IpAddr, SocketAddr};

use actix_web::{
    HttpRequest,
    http::header::{self, HeaderMap},
};

use crate::app::Shared;

/// The longest description of a program that is kept.
const MAX_CLIENT_LETTERS: usize = 200;

/// The program's address: what the proxy says where the operator trusts one, else the peer's.
pub(super) fn address(shared: &Shared, request: &HttpRequest) -> Option<IpAddr> {
    let told = if shared.config.behind_proxy { told_address(request.headers()) } else { None };
    told.or_else(|| request.peer_addr().map(|address| address.ip()))
}

/// The client's address as the proxy saw it.
fn told_address(headers: &HeaderMap) -> Option<IpAddr> {
    let text = told(headers, "x-forwarded-for")?;
    text.parse().or_else(|_| text.parse().map(|address: SocketAddr| address.ip())).ok()
}

/// What the proxy itself put into a header: the last of its values. Those before it, and the header `Forwarded`, which
/// proxies pass on unread, are the client's own words.
fn told<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let value = headers.get_all(name).last()?.to_str().ok()?;
    let value = value.rsplit(',').next()?.trim();
    (!value.is_empty()).then_some(value)
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
    let told = |name| if shared.config.behind_proxy { told(request.headers(), name) } else { None };
    let own = if shared.config.tls_cert.is_some() { "https" } else { "http" };
    let scheme = told("x-forwarded-proto").filter(|scheme| ["http", "https"].contains(scheme)).unwrap_or(own);
    let host = told("x-forwarded-host");
    let host = host.or_else(|| request.headers().get(header::HOST).and_then(|host| host.to_str().ok()));
    // HTTP/2 has the host in the request's URI.
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    format!("{scheme}://{}", host.unwrap_or("localhost"))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn a_client_that_gives_itself_another_address_is_not_believed() {
        let address = |headers: &[(&'static str, &str)]| {
            let request = headers.iter().fold(TestRequest::default(), |request, header| request.append_header(*header));
            told_address(request.to_http_request().headers()).map(|address| address.to_string())
        };
        let proxys = ("x-forwarded-for", "198.51.100.7");
        assert_eq!(address(&[proxys]).as_deref(), Some("198.51.100.7"));
        // What a proxy does that adds to the header, one that adds another, and one that knows no `Forwarded`.
        assert_eq!(address(&[("x-forwarded-for", "203.0.113.1, 198.51.100.7")]).as_deref(), Some("198.51.100.7"));
        assert_eq!(address(&[("x-forwarded-for", "203.0.113.1"), proxys]).as_deref(), Some("198.51.100.7"));
        assert_eq!(address(&[("forwarded", "for=203.0.113.1"), proxys]).as_deref(), Some("198.51.100.7"));
        assert_eq!(address(&[("x-forwarded-for", "[2001:db8::7]:4711")]).as_deref(), Some("2001:db8::7"));
        assert_eq!(address(&[("forwarded", "for=203.0.113.1")]), None);
        assert_eq!(address(&[("x-forwarded-for", "203.0.113.1, ")]), None);
    }
}
