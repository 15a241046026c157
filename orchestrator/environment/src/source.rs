//! Where the environments of a run come from.

use std::sync::Arc;

use rolldock_reward::WorkerPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{BuiltIn, EnvironmentConfig};
use crate::http::HttpEnvironments;
use crate::python::{self, PythonEnvironment};
use crate::{Environment, EnvironmentError};

/// Makes the environment of each trajectory.
pub struct EnvironmentSource(Kind);

enum Kind {
    BuiltIn(BuiltIn),
    Python(Arc<WorkerPool>),
    Http(Arc<HttpEnvironments>),
}

impl EnvironmentSource {
    /// Opens the environment that a recipe names. No process is started, and no server is asked. Tasks that
    /// are started later run on `tracker`, and end when `token` is cancelled.
    ///
    /// # Errors
    /// [`EnvironmentError::Misconfigured`] if a value is wrong.
    pub fn open(
        config: &EnvironmentConfig,
        tracker: TaskTracker,
        token: &CancellationToken,
    ) -> Result<Self, EnvironmentError> {
        config.check()?;
        let kind = match (config.name, &config.python, &config.url) {
            (Some(built_in), _, _) => Kind::BuiltIn(built_in),
            (None, Some(python), _) => Kind::Python(Arc::new(python.open(tracker, token)?)),
            (None, None, Some(url)) => Kind::Http(Arc::new(HttpEnvironments::open(url)?)),
            (None, None, None) => {
                return Err(EnvironmentError::wrong("name", "exactly one of name, python and url", "none"));
            }
        };
        Ok(Self(kind))
    }

    /// Checks before the first trajectory that the environment can be used: a process starts, or a server
    /// answers. Cancel-safe.
    ///
    /// # Errors
    /// The environment failed.
    pub async fn check(&self) -> Result<(), EnvironmentError> {
        match &self.0 {
            Kind::BuiltIn(_) => Ok(()),
            Kind::Python(pool) => pool.check().await.map_err(python::failed),
            Kind::Http(server) => server.check().await,
        }
    }

    /// The environment of one trajectory. `session` identifies the trajectory. Waits for a process if all are
    /// taken. Cancel-safe.
    ///
    /// # Errors
    /// The environment failed.
    pub async fn make(&self, session: &Arc<str>) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(match &self.0 {
            Kind::BuiltIn(built_in) => built_in.make(),
            Kind::Python(pool) => Box::new(PythonEnvironment::begin(pool).await?),
            Kind::Http(server) => Box::new(server.begin(session)),
        })
    }
}
