//! The sources of announcements: an address, a directory, both or neither.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::{PolicyError, Updates, face, watched};
use rolldock_listener::{ConnectionLimits, Connections};
use rolldock_scope::Scope;

/// The configuration of the sources: where a trainer announces versions, and the token that it must send.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourcesConfig {
    /// The address to listen on for announcements.
    pub listen: Option<SocketAddr>,
    /// The token that a client must send as `Authorization: Bearer ...`; without it no token is needed.
    pub token: Option<String>,
    /// The limits of the connections of clients.
    pub connections: ConnectionLimits,
    /// The directory that is searched for checkpoints.
    pub watch: Option<PathBuf>,
}

/// The open sources. They end with their scope, or when this value is dropped.
#[derive(Debug)]
pub struct Announcements {
    address: Option<SocketAddr>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Announcements {
    /// Opens the sources that the configuration names. Their announcements go to the state of `updates`.
    ///
    /// Cancel-safe: dropping the future closes the sources that are open.
    ///
    /// # Errors
    /// [`PolicyError::Listen`] if the address cannot be bound. [`PolicyError::Directory`] if the directory
    /// has no absolute path in UTF-8.
    pub async fn open(config: SourcesConfig, updates: &Updates, scope: &Scope) -> Result<Self, PolicyError> {
        let mut tasks = Vec::new();
        let mut address = None;
        if let Some(listen) = config.listen {
            let cannot = |reason| PolicyError::Listen { address: listen, reason };
            let listener = TcpListener::bind(listen).await.map_err(cannot)?;
            let bound = listener.local_addr().map_err(cannot)?;
            if config.token.is_none() && !bound.ip().is_loopback() {
                tracing::warn!(
                    address = %bound,
                    "any client that can reach this address can announce policy versions: no token is set"
                );
            }
            let connections = Connections::new("policy", &config.connections);
            let end = scope.token().clone();
            let serving = face::serve(updates.clone(), config.token, listener, connections, end);
            tasks.push(scope.spawn("policy server", serving));
            address = Some(bound);
        }
        if let Some(watch) = config.watch {
            let directory = in_full(&watch)?;
            tasks.push(scope.spawn(
                "policy directory",
                watched::follow(directory, updates.state().clone(), scope.clone()),
            ));
        }
        Ok(Self { address, _tasks: tasks })
    }

    /// The address of the listener. If the configured port is 0, the address has the port that the system
    /// chose.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

/// The absolute path of `directory`. Servers are other processes with other working directories, and they get
/// the path in JSON, which needs UTF-8.
fn in_full(directory: &Path) -> Result<PathBuf, PolicyError> {
    let cannot =
        |reason| PolicyError::Directory { directory: directory.to_string_lossy().into_owned(), reason };
    let absolute = std::path::absolute(directory).map_err(cannot)?;
    if absolute.to_str().is_none() {
        return Err(cannot(std::io::Error::new(std::io::ErrorKind::InvalidInput, "expected UTF-8")));
    }
    Ok(absolute)
}
