//! Any command that speaks JSON lines as a reward; the protocol is that of the pool, [`super::processes`].
//!
//! The words are the program and its arguments: no shell reads them, unless the first one is a shell.

use std::time::Duration;

use super::config::CommandConfig;
use super::processes::PoolSpec;

/// The pool of a command. `start` limits the handshake, where the command has one.
pub(super) fn pool_spec(config: &CommandConfig, start: Duration) -> PoolSpec {
    let program = config.words.first().map_or("", String::as_str);
    PoolSpec {
        what: format!("reward command {program:?}"),
        words: config.words.clone(),
        directory: config.directory.clone(),
        env: config.env.clone(),
        workers: config.workers,
        handshake: config.handshake.then_some(start),
        jobs_per_worker: config.jobs_per_worker,
        memory_bytes: config.memory_mb.map(super::config::bytes_of_mb),
    }
}
