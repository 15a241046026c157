//! The servers of a case, and its slow reward. The counters of the servers are the truth.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::scope::Scope;
use rolldock_reward::{RewardError, RewardJob, RewardRunner, Score};
use rolldock_simengine::{
    Fault, LengthConfig, PauseMode, Phase, ServerConfig, SimServer, Workload, WorkloadConfig,
};
use tokio::time::sleep;

use super::{FLEET, MAX_RESPONSE};
use crate::rollout::SEED;
use crate::workload::{EOS, answers};

/// Permits of a server in the load balancer. The server itself runs fewer requests at a time, so requests also
/// wait on the server.
pub(super) const PERMITS: u32 = 12;

/// A reward that takes time, and sometimes raises an error.
#[derive(Default)]
pub(super) struct Slow {
    asked: AtomicU64,
}

impl RewardRunner for Slow {
    fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        async move {
            let turn = self.asked.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(20 + 37 * turn % 150)).await;
            if turn % 41 == 40 {
                return Err(RewardError::Raised { what: "the bench".into(), reason: "ValueError".into() });
            }
            Ok(Score::right_or_wrong(!turn.is_multiple_of(3), None))
        }
        .boxed()
    }
}

/// The servers, and the last values of counters that were reset to zero.
pub(super) struct Engines {
    pub(super) engine: SimulatedEngine,
    before_restarts: u64,
    changes: usize,
}

impl Engines {
    pub(super) fn start(scope: &Scope) -> anyhow::Result<Self> {
        let length = LengthConfig {
            median_easy: 20.0,
            median_hard: 90.0,
            min: 3,
            max: 2 * MAX_RESPONSE,
            ..LengthConfig::default()
        };
        let workload = WorkloadConfig { seed: SEED, eos_id: EOS, length, ..WorkloadConfig::default() };
        let workload = Arc::new(Workload::new(workload));
        let start = |number: usize| {
            let config = ServerConfig {
                name: format!("s{number}"),
                max_num_seqs: PERMITS - 2,
                speed: [0.3, 0.2, 0.5][number % 3],
                ..ServerConfig::default()
            };
            let token = scope.token().clone();
            SimServer::start(config, Arc::clone(&workload), answers(), scope.tracker(), token)
        };
        let servers: Vec<SimServer> = (0..FLEET.servers).map(start).collect::<Result<_, _>>()?;
        Ok(Self { engine: SimulatedEngine::new(servers), before_restarts: 0, changes: 0 })
    }

    /// Tokens that the servers have generated.
    pub(super) fn generated(&self) -> u64 {
        let counted = self.engine.servers().map(|server| server.stats().generation_tokens_total);
        self.before_restarts + counted.sum::<u64>()
    }

    /// Makes the next change of the fleet: a fault of one server, or the end of all faults.
    pub(super) fn change(&mut self) {
        const FAULTS: [Fault; 7] = [
            Fault::Reset { share: 0.3 },
            Fault::Nan { share: 0.3 },
            Fault::Error500 { share: 0.3 },
            Fault::Die,
            Fault::Slow { factor: 3.0 },
            Fault::Poison { share: 0.2 },
            Fault::SigTerm,
        ];
        let turn = self.changes;
        self.changes += 1;
        if turn.is_multiple_of(2) {
            let servers: Vec<&SimServer> = self.engine.servers().collect();
            servers[turn / 2 % servers.len()].inject(FAULTS[turn / 2 % FAULTS.len()]);
            return;
        }
        self.repair();
    }

    /// Ends all faults and pauses.
    pub(super) fn repair(&mut self) {
        for server in self.engine.servers() {
            // A restarted server counts from zero again.
            if server.phase() != Phase::Serving {
                self.before_restarts += server.stats().generation_tokens_total;
            }
            server.heal();
            server.resume();
        }
    }

    /// Gives all servers the label of a version, as an update of their weights does.
    pub(super) async fn update(&self, version: u64) {
        for server in self.engine.servers() {
            server.pause(if version.is_multiple_of(2) { PauseMode::Abort } else { PauseMode::Keep }).await;
        }
        sleep(Duration::from_millis(20)).await;
        for server in self.engine.servers() {
            server.update_weight_version(version.to_string());
            server.resume();
        }
    }
}
