//! Tests of the estimate for requests that a hanging server has lost.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rolldock::engine::simulated::SimulatedEngine;
use rolldock::engine::{Engine, EngineError, GenerateRequest, Generation};
use rolldock::rollout::{AgentLoopManager, EarlyStop, RolloutParts};
use rolldock_simengine::Fault;

use crate::support::{World, in_virtual_time, prompts};

/// A fleet that, like vLLM, does not report the tokens of requests without an answer.
struct Silent(SimulatedEngine);

impl Engine for Silent {
    fn generate<'a>(
        &'a self,
        server: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<Generation, EngineError>> {
        self.0.generate(server, GenerateRequest { progress: None, ..request })
    }

    fn interrupt(&self, server: &str, request_id: &Arc<str>) -> BoxFuture<'_, ()> {
        self.0.interrupt(server, request_id)
    }

    fn cancelled(&self, server: &str, request_id: &Arc<str>) {
        self.0.cancelled(server, request_id);
    }

    fn settle(&self, limit: Duration) -> BoxFuture<'_, ()> {
        self.0.settle(limit)
    }
}

#[test]
fn the_time_for_which_a_server_hangs_does_not_count_as_tokens() {
    in_virtual_time(async {
        let mut world = World::calm(2, 8);
        // Nothing is cut off, so only requests that the server loses are estimated.
        world.config.early_stop = EarlyStop::Off;
        world.config.gen_batch_size = 8;
        world.config.max_gen_batches = 1;
        world.monitor.probe_interval = Duration::from_millis(100);
        let _monitor = world.start_monitor();
        let parts = RolloutParts {
            engine: Arc::new(Silent(world.engine.clone())),
            balancer: world.balancer.clone(),
            grading: world.grading.clone(),
        };
        let mut manager = AgentLoopManager::new(world.config.clone(), parts, world.scope.clone());
        let feed = prompts(10_000);
        manager.generate(&feed, 8).await.unwrap();
        let hanging = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            world.engine.server("s0").unwrap().inject(Fault::Stall);
        };
        let (output, ()) = tokio::join!(manager.generate(&feed, 8), hanging);
        let tokens = output.unwrap().metrics.tokens_run;
        let by_engines: u64 =
            world.engine.servers().map(|server| server.stats().generation_tokens_total).sum();
        let off = tokens.generated.abs_diff(by_engines);
        assert!(tokens.estimated > 0, "{tokens:?}");
        assert!(off < 100, "{} tokens counted, {by_engines} generated: {tokens:?}", tokens.generated);
        world.scope.close(Duration::from_secs(1)).await;
    });
}
