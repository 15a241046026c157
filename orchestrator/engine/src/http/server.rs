//! One server of the engine client: its name, its address and, after the probe, its facts.

use std::sync::Arc;

use http::Uri;
use rolldock_loadbalancer::ServerRef;
use rolldock_loadbalancer::membership::name_of;

use super::facts::{Dialect, ServerFacts};
use crate::EngineError;

/// A server's name in the fleet and its address.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) name: Arc<str>,
    /// The address without a slash at its end.
    url: Arc<str>,
}

impl Server {
    /// Checks the address.
    ///
    /// # Errors
    /// [`EngineError::Unfit`] if the address is not an `http://` URL.
    pub(super) fn new(name: &str, url: &str) -> Result<Self, EngineError> {
        let server = Self { name: name.into(), url: url.trim_end_matches('/').into() };
        let parsed: Uri =
            url.parse().map_err(|error| server.unfit(format!("url={url} is not a url: {error}")))?;
        if parsed.scheme_str() != Some("http") {
            return Err(server.unfit(format!(
                "url={url} does not begin with http://; for https put a proxy in front of the server"
            )));
        }
        if parsed.query().is_some() {
            return Err(server.unfit(format!("url={url} has a query")));
        }
        Ok(server)
    }

    /// The address of an endpoint of the server.
    pub(super) fn uri(&self, path: &str) -> Result<Uri, EngineError> {
        format!("{}{path}", self.url).parse().map_err(|error| self.unfit(format!("{}: {error}", self.url)))
    }

    /// The reference by which engine control addresses this server.
    pub(super) fn for_control(&self) -> ServerRef {
        ServerRef { name: Arc::clone(&self.name), url: Some(Arc::clone(&self.url)) }
    }

    /// `reason` with the server's address, for errors that an operator has to fix. If the server's name is
    /// its address, the address is not added.
    pub(super) fn at_url(&self, reason: &str) -> String {
        if name_of(&self.url) == self.name.as_ref() {
            return reason.to_owned();
        }
        format!("url={}: {reason}", self.url)
    }

    pub(super) fn unfit(&self, reason: String) -> EngineError {
        EngineError::Unfit { server: self.name.to_string(), reason }
    }

    pub(super) fn failed(&self, reason: String) -> EngineError {
        EngineError::Failed { server: self.name.to_string(), reason }
    }

    pub(super) fn bad_answer(&self, reason: String) -> EngineError {
        EngineError::BadAnswer { server: self.name.to_string(), reason }
    }
}

/// A server that passed the probe.
#[derive(Debug)]
pub(super) struct ProbedServer {
    pub(super) server: Server,
    pub(super) facts: ServerFacts,
    /// The address for requests.
    pub(super) generate_uri: Uri,
}

impl ProbedServer {
    pub(super) fn new(server: Server, facts: ServerFacts) -> Result<Self, EngineError> {
        let generate_uri = server.uri(match facts.dialect {
            Dialect::Generate => "/inference/v1/generate",
            Dialect::Completions | Dialect::TextOnly => "/v1/completions",
        })?;
        Ok(Self { server, facts, generate_uri })
    }
}
