//! Servers that only take time.
//!
//! The cost of a rollout is the difference between two runs. A simulated server spends several times as much
//! CPU time on a sample as the rollout does, so the difference would be within the error of both. These
//! servers do the least that a server can do: a request sleeps for as long as its tokens take, and returns them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use rolldock::engine::{Engine, EngineError, FinishReason, GenerateRequest, Generation, SampleOutput};

use crate::workload::EOS;

/// The shortest response and the longest, in tokens. They differ as little as those of the simulated servers.
const TOKENS: (u64, u64) = (1_200, 1_800);
const PER_TOKEN: Duration = Duration::from_millis(20);

/// The servers. Any name is that of a server.
pub(super) struct TimedEngine;

impl Engine for TimedEngine {
    fn generate<'a>(
        &'a self,
        _server: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<Generation, EngineError>> {
        let (shortest, longest) = TOKENS;
        // The seeds of a group are consecutive. The multiplier spreads them over the lengths.
        let spread = request.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let tokens = (shortest + spread % (longest - shortest)) as u32;
        async move {
            tokio::time::sleep(PER_TOKEN * tokens).await;
            let sample = SampleOutput {
                response_ids: vec![EOS; tokens as usize],
                logprobs: vec![-0.5; tokens as usize],
                finish_reason: FinishReason::Stop,
                version_spans: Vec::new(),
            };
            Ok(Generation { samples: vec![sample] })
        }
        .boxed()
    }

    fn interrupt(&self, _server: &str, _request_id: &Arc<str>) -> BoxFuture<'_, ()> {
        future::ready(()).boxed()
    }

    fn cancelled(&self, _server: &str, _request_id: &Arc<str>) {}

    fn settle(&self, _limit: Duration) -> BoxFuture<'_, ()> {
        future::ready(()).boxed()
    }
}
