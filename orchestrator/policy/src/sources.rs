//! Where announcements come from: an address, a directory, both or neither.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::{PolicyError, Updates, face, watched};
use rolldock_scope::Scope;

/// Where a trainer announces versions, and what it has to present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourcesConfig {
    /// Where it is listened for them.
    pub listen: Option<SocketAddr>,
    /// What has to be sent as `Authorization: Bearer ...`; nothing if absent.
    pub token: Option<String>,
    /// In which directory it is looked for them.
    pub watch: Option<PathBuf>,
}

/// The open sources; they end with their scope, or when this is dropped.
#[derive(Debug)]
pub struct Announcements {
    address: Option<SocketAddr>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Announcements {
    /// Opens what the configuration names; what they hear goes to the state of `updates`.
    ///
    /// Cancel-safe: dropping it closes what is open.
    ///
    /// # Errors
    /// Where the address is taken, or the directory has no name that servers could be told.
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
            let serving = face::serve(updates.clone(), config.token, listener, scope.token().clone());
            tasks.push(scope.spawn("policy server", async move {
                if let Err(error) = serving.await {
                    tracing::error!(%error, "the server for policy versions has stopped");
                }
            }));
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

    /// Where it is listened, once the system has chosen a port for 0.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

/// Servers are other processes, in other directories, and are told in JSON.
fn in_full(directory: &Path) -> Result<PathBuf, PolicyError> {
    let cannot =
        |reason| PolicyError::Directory { directory: directory.to_string_lossy().into_owned(), reason };
    let absolute = std::path::absolute(directory).map_err(cannot)?;
    if absolute.to_str().is_none() {
        return Err(cannot(std::io::Error::new(std::io::ErrorKind::InvalidInput, "expected UTF-8")));
    }
    Ok(absolute)
}
