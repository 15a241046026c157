//! Which samples leave a full server.
//!
//! A vLLM server whose KV cache is full preempts the sample that arrived last: it frees the sample's blocks, and
//! computes its tokens again as soon as they fit. They fit when the cache is nearly full, so the server soon preempts
//! the same sample again. The sample has to be computed again in any case, so it costs only an abort to take it back
//! and to give it to the first other server that has room. A long prompt that the samples of a group share is an
//! exception: the server of the group still has it, and another one would have to compute it. Such samples stay.
//!
//! The number of permits must be below the number of samples on the server. Measured permits fall when a cache is
//! full, so the server gets no further sample. A fixed number of permits that is too large for the caches sends the
//! sample to another full server, so it stays where it is.
//!
//! A server does not tell which samples it has preempted. They are the last ones that it got, as many as wait. Samples
//! of other clients may be among those that wait, so as many as these clients have are not counted.
//!
//! # Invariants
//! A reading of a server's load makes samples leave at most once: the next samples leave after the next reading, which
//! shows who still waits.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rolldock_loadbalancer::ServerId;
use rolldock_loadbalancer::snapshot::ServerSnapshot;

use super::{Key, Reason, Running};

/// The share of a KV cache in use from which waiting requests wait for the cache. On a server with more room, they wait
/// for their turn.
const FULL: f64 = 0.9;

/// A server that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FullServer {
    pub(super) id: ServerId,
    /// The number of our samples that have to leave.
    leaving: usize,
    /// The number of the reading that shows this.
    pub(super) reading: u64,
}

/// The full servers on which samples wait, by readings after those in `left_at`.
pub(super) fn full_servers(servers: &[ServerSnapshot], left_at: &BTreeMap<ServerId, u64>) -> Vec<FullServer> {
    let full = |server: &ServerSnapshot| {
        let waiting = server.engine_waiting.saturating_sub(u64::from(server.foreign));
        let leaving = if server.overhang > 0 && server.kv_cache_usage >= FULL { waiting } else { 0 };
        let is_new = left_at.get(&server.id).is_none_or(|reading| *reading != server.load_readings);
        (leaving > 0 && is_new).then(|| FullServer {
            id: server.id,
            leaving: usize::try_from(leaving).unwrap_or(usize::MAX),
            reading: server.load_readings,
        })
    };
    servers.iter().filter_map(full).collect()
}

/// The requests that began last on each of these servers, as many as wait there, with their servers. A request that may
/// not move is counted, and stays. So is one whose prompt has at least `kept_tokens_min` tokens.
pub(super) fn last_begun(
    full: &[FullServer],
    running: &BTreeMap<Key, Running>,
    kept_tokens_min: Option<f64>,
) -> Vec<(ServerId, Key)> {
    let mut on_server: BTreeMap<ServerId, Vec<(Key, &Running)>> =
        full.iter().map(|server| (server.id, Vec::new())).collect();
    for (key, request) in running {
        if let Some(requests) = on_server.get_mut(&request.server) {
            requests.push((*key, request));
        }
    }
    let is_kept = |request: &Running| kept_tokens_min.is_some_and(|least| f64::from(request.prompt) >= least);
    let mut last = Vec::new();
    for server in full {
        let mut requests = on_server.remove(&server.id).unwrap_or_default();
        requests.sort_unstable_by_key(|(_, request)| Reverse(request.number));
        let waiting = requests.into_iter().take(server.leaving);
        let leaving = waiting.filter(|(_, request)| request.may_move(Reason::Full) && !is_kept(request));
        last.extend(leaving.map(|(key, _)| (server.id, key)));
    }
    last
}
