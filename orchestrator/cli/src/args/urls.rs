//! Options whose value is a URL.

use rolldock_loadbalancer::membership::base_of;

/// Reads the base URL of a server.
pub(super) fn base_url(text: &str) -> Result<String, String> {
    base_of(text).map_err(|reason| format!("expected a base URL like http://host:port: {reason}"))
}

/// Reads the URL of a server that may be behind a proxy with TLS.
pub(super) fn public_url(text: &str) -> Result<String, String> {
    let parsed = url::Url::parse(text).ok();
    let is_url = parsed.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if is_url {
        Ok(text.to_owned())
    } else {
        Err("expected a URL like http://host:port or https://host".to_owned())
    }
}
