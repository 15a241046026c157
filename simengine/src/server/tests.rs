use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{
    AnswerKey, Fault, FinishReason, NoAnswers, PauseMode, Phase, ServerConfig, SimError, SimRequest,
    SimServer, Workload, WorkloadConfig, invariants,
};

struct Fixture {
    server: SimServer,
    tracker: TaskTracker,
    cancel: CancellationToken,
}

fn start_with(config: ServerConfig) -> Fixture {
    let tracker = TaskTracker::new();
    let cancel = CancellationToken::new();
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let server = SimServer::start(config, workload, Arc::new(NoAnswers), &tracker, cancel.clone()).unwrap();
    Fixture { server, tracker, cancel }
}

fn start() -> Fixture {
    start_with(ServerConfig::default())
}

fn request(id: &str, seed: u64, max_tokens: u32) -> SimRequest {
    let prompt: Vec<u32> = (1..100).collect();
    SimRequest { max_tokens: Some(max_tokens), ignore_eos: true, ..SimRequest::new(id, prompt, seed) }
}

impl Fixture {
    fn spawn(&self, request: SimRequest) -> tokio::task::JoinHandle<Result<crate::SimResponse, SimError>> {
        let server = self.server.clone();
        self.tracker.spawn(async move { server.generate(request).await })
    }

    fn check(&self) {
        invariants::check(&self.server.census()).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_sample_takes_prefill_and_decode_time() {
    let fixture = start();
    let before = Instant::now();
    let response = fixture.server.generate(request("a", 1, 500)).await.unwrap();
    let config = ServerConfig::default();
    // The prompt's 99 tokens and the first token share a step; 499 steps of one sequence follow.
    let first_ns = 99 * config.prefill_ns_per_token + config.decode_base_ns;
    assert_eq!(response.first_token_ns, first_ns);
    let series: u64 = (100..599).sum();
    let run_ns =
        499 * (config.decode_base_ns + config.decode_ns_per_seq) + series * config.decode_ns_per_kv_token;
    assert_eq!(response.total_ns, first_ns + run_ns);
    let elapsed = before.elapsed();
    assert!(elapsed >= Duration::from_nanos(response.total_ns));
    assert!(elapsed <= Duration::from_nanos(response.total_ns) + Duration::from_millis(2));
    assert_eq!(response.choices[0].token_ids.len(), 500);
    assert_eq!(response.choices[0].logprobs.len(), 500);
    assert_eq!(response.choices[0].finish_reason, FinishReason::Length);
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn one_request_of_n_says_what_n_requests_say() {
    let fixture = start();
    let prompt: Vec<u32> = (1..100).collect();
    let mut together = SimRequest::new("n", prompt.clone(), 40);
    together.n = 4;
    let group = fixture.server.generate(together).await.unwrap();
    for (index, choice) in (0_u32..).zip(&group.choices) {
        let single = SimRequest::new(format!("s{index}"), prompt.clone(), 40 + u64::from(index));
        let alone = fixture.server.generate(single).await.unwrap();
        assert_eq!(alone.choices[0].token_ids, choice.token_ids);
        assert_eq!(alone.choices[0].logprobs, choice.logprobs);
        let draw = fixture.server.workload().draw(&prompt, 40 + u64::from(index), &NoAnswers);
        assert_eq!(draw.length as usize, choice.token_ids.len());
    }
}
