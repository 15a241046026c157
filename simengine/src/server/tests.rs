use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::request::{FinishReason, Resumed};
use crate::{
    Fault, NoAnswers, PauseMode, Phase, ServerConfig, SimError, SimRequest, SimResponse, SimServer, Workload,
    WorkloadConfig, invariants,
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
    fn spawn(&self, request: SimRequest) -> tokio::task::JoinHandle<Result<SimResponse, SimError>> {
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

#[tokio::test(start_paused = true)]
async fn a_resumed_sample_goes_on_where_it_was_cut_and_pays_for_all_of_its_prefill() {
    let (first, second) = (start(), start());
    let prompt: Vec<u32> = (1..100).collect();
    let whole = first.server.generate(SimRequest::new("w", prompt.clone(), 40)).await.unwrap();
    let sample = &whole.choices[0];
    let said = sample.token_ids.len() / 2;
    let longer: Vec<u32> = prompt.iter().chain(&sample.token_ids[..said]).copied().collect();
    let rest = SimRequest {
        resumed: Some(Resumed { tokens: said as u32, seed: 40 }),
        ..SimRequest::new("r", longer, 41)
    };
    second.server.update_weight_version("v2");
    let resumed = second.server.generate(rest).await.unwrap();
    let choice = &resumed.choices[0];
    assert_eq!(choice.token_ids, sample.token_ids[said..]);
    assert_eq!(choice.logprobs, sample.logprobs[said..]);
    assert_eq!(choice.finish_reason, sample.finish_reason);
    let spans: Vec<_> =
        choice.version_spans.iter().map(|span| (&*span.version, span.start, span.end)).collect();
    assert_eq!(spans, [("v2", 0, choice.token_ids.len() as u32)]);
    let config = ServerConfig::default();
    let prefill_ns = (prompt.len() + said) as u64 * config.prefill_ns_per_token;
    assert_eq!(resumed.first_token_ns, prefill_ns + config.decode_base_ns);
    second.check();
}

#[tokio::test(start_paused = true)]
async fn an_invalid_resumption_is_refused() {
    let fixture = start();
    let prompt: Vec<u32> = (1..100).collect();
    for (tokens, n) in [(99, 1), (500, 1), (10, 2), (10, 1)] {
        let wrong = SimRequest {
            n,
            resumed: Some(Resumed { tokens, seed: 40 }),
            ..SimRequest::new("r", prompt.clone(), 41)
        };
        let error = fixture.server.generate(wrong).await.unwrap_err();
        assert!(matches!(error, SimError::BadRequest { .. }), "{error}");
    }
}

async fn pass_ms(span_ms: u64) {
    tokio::time::sleep(Duration::from_millis(span_ms)).await;
}

#[tokio::test(start_paused = true)]
async fn dropping_a_request_frees_everything_it_holds() {
    let fixture = start();
    let mut group = request("g", 1, 5_000);
    group.n = 16;
    let running = fixture.spawn(group);
    pass_ms(1_000).await;
    let stats = fixture.server.stats();
    assert_eq!(stats.running, 16);
    assert!(stats.generation_tokens_total > 16);
    running.abort();
    pass_ms(1).await;
    let after = fixture.server.stats();
    assert_eq!((after.running, after.waiting), (0, 0));
    assert_eq!(after.kv_cache_usage, 0.0);
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_batch_waits_its_turn() {
    let fixture = start_with(ServerConfig { max_num_seqs: 2, ..ServerConfig::default() });
    let first = fixture.spawn(request("a", 1, 100));
    let second = fixture.spawn(request("b", 2, 200));
    let third = fixture.spawn(request("c", 3, 100));
    pass_ms(100).await;
    let stats = fixture.server.stats();
    assert_eq!((stats.running, stats.waiting), (2, 1));
    let (ended_first, ended_second, ended_third) = tokio::join!(first, second, third);
    let queued_ns = ended_third.unwrap().unwrap().queue_ns;
    let freed_ns = ended_first.unwrap().unwrap().total_ns;
    assert!(queued_ns.abs_diff(freed_ns) < 50_000_000, "{queued_ns} and {freed_ns}");
    assert_eq!(ended_second.unwrap().unwrap().choices[0].token_ids.len(), 200);
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn a_cache_too_small_for_the_batch_preempts_and_finishes_all() {
    let config =
        ServerConfig { kv_blocks: 130, max_model_len: 2_000, max_num_seqs: 8, ..ServerConfig::default() };
    let fixture = start_with(config);
    let tasks: Vec<_> =
        (0..8).map(|index| fixture.spawn(request(&format!("r{index}"), index, 700))).collect();
    for task in tasks {
        let response = task.await.unwrap().unwrap();
        assert_eq!(response.choices[0].token_ids.len(), 700);
        fixture.check();
    }
    let stats = fixture.server.stats();
    assert!(stats.preemptions_total > 0);
    assert_eq!(stats.generation_tokens_total, 8 * 700, "recomputed tokens are not counted again");
    assert_eq!(stats.kv_cache_usage, 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_shared_prompt_is_computed_once() {
    let fixture = start();
    let mut group = request("g", 1, 10);
    group.prompt_ids = (0..1_024).collect();
    group.n = 16;
    fixture.server.generate(group).await.unwrap();
    let stats = fixture.server.stats();
    assert_eq!(stats.prefix_cache_queries_total, 16 * 1_024);
    // Every sample except the first finds every block except the last in the cache. The last token of the
    // prompt has to be computed.
    assert_eq!(stats.prefix_cache_hits_total, 15 * (1_024 - 16));
    assert!(fixture.server.reset_prefix_cache(false));
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_keeps_costs_no_token_and_shows_in_the_versions() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 1_000));
    pass_ms(2_000).await;
    fixture.server.pause(PauseMode::Keep).await;
    let before = fixture.server.stats().generation_tokens_total;
    let held = fixture.spawn(request("b", 2, 10));
    pass_ms(60_000).await;
    assert_eq!(fixture.server.stats().generation_tokens_total, before);
    assert_eq!(fixture.server.stats().held, 1);
    fixture.server.update_weight_version("v2");
    fixture.server.resume();
    let response = running.await.unwrap().unwrap();
    let spans = &response.choices[0].version_spans;
    let labels: Vec<&str> = spans.iter().map(|span| &*span.version).collect();
    assert_eq!(labels, ["default", "v2"]);
    assert_eq!((spans[0].start, spans[0].end), (0, spans[1].start));
    assert_eq!(u64::from(spans[0].end), before);
    assert_eq!(spans[1].end, 1_000);
    assert_eq!(&*held.await.unwrap().unwrap().choices[0].version_spans[0].version, "v2");
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_aborts_gives_partial_samples() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 1_000));
    pass_ms(2_000).await;
    fixture.server.pause(PauseMode::Abort).await;
    let choice = running.await.unwrap().unwrap().choices.remove(0);
    assert_eq!(choice.finish_reason, FinishReason::Abort);
    assert!(choice.token_ids.len() > 100 && choice.token_ids.len() < 1_000);
    let whole = {
        fixture.server.resume();
        fixture.server.generate(request("b", 1, 1_000)).await.unwrap()
    };
    assert_eq!(whole.choices[0].token_ids[..choice.token_ids.len()], choice.token_ids);
    assert_eq!(fixture.server.stats().success_abort_total, 1);
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_aborts_counts_only_samples_that_had_not_ended() {
    let fixture = start();
    let prompt: Vec<u32> = (1..100).collect();
    let running = fixture.spawn(SimRequest { n: 4, ..SimRequest::new("n", prompt, 40) });
    while fixture.server.stats().ended_total == 0 {
        pass_ms(1).await;
        assert!(!running.is_finished(), "expected a sample that ends before the others");
    }
    fixture.server.pause(PauseMode::Abort).await;
    running.await.unwrap().unwrap();
    let stats = fixture.server.stats();
    assert!(stats.success_abort_total < 4);
    assert_eq!(stats.success_stop_total + stats.success_length_total + stats.success_abort_total, 4);
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_waits_drains_first() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 500));
    pass_ms(500).await;
    fixture.server.pause(PauseMode::Wait).await;
    assert!(running.is_finished() || fixture.server.stats().running == 0);
    let held = fixture.spawn(request("b", 2, 5));
    pass_ms(10_000).await;
    assert!(!held.is_finished());
    fixture.server.resume();
    held.await.unwrap().unwrap();
    assert_eq!(running.await.unwrap().unwrap().choices[0].finish_reason, FinishReason::Length);
}

#[tokio::test(start_paused = true)]
async fn an_early_abort_is_lost_and_a_later_one_is_not() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 2_000));
    pass_ms(1).await;
    fixture.server.abort(&["a"]);
    pass_ms(500).await;
    assert_eq!(fixture.server.stats().running, 1);
    fixture.server.abort(&["a"]);
    let response = running.await.unwrap().unwrap();
    assert_eq!(response.choices[0].finish_reason, FinishReason::Abort);
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn a_stalled_server_goes_on_where_it_stood_when_healed() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 300));
    pass_ms(500).await;
    fixture.server.inject(Fault::Stall);
    pass_ms(100_000).await;
    assert!(!running.is_finished());
    assert_eq!(fixture.server.phase(), Phase::Serving);
    fixture.server.heal();
    let response = running.await.unwrap().unwrap();
    assert!(response.total_ns > 100_000_000_000);
    assert_eq!(response.choices[0].token_ids.len(), 300);
}

#[tokio::test(start_paused = true)]
async fn death_fails_the_running_and_refuses_the_new() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 300));
    pass_ms(500).await;
    fixture.server.inject(Fault::Die);
    assert!(matches!(running.await.unwrap(), Err(SimError::EngineDead { .. })));
    assert_eq!(fixture.server.phase(), Phase::EngineDead);
    pass_ms(3_100).await;
    assert_eq!(fixture.server.phase(), Phase::Gone);
    let refused = fixture.server.generate(request("b", 1, 3)).await;
    assert!(matches!(refused, Err(SimError::Unreachable { .. })));
    fixture.server.heal();
    fixture.server.generate(request("c", 1, 3)).await.unwrap();
    assert_eq!(fixture.server.stats().generation_tokens_total, 3, "a new process counts anew");
    fixture.check();
}

#[tokio::test(start_paused = true)]
async fn a_terminated_server_neither_answers_nor_fails() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 300));
    pass_ms(500).await;
    fixture.server.inject(Fault::SigTerm);
    pass_ms(1_000_000).await;
    assert!(!running.is_finished());
    fixture.server.heal();
    assert!(matches!(running.await.unwrap(), Err(SimError::ConnectionReset { .. })));
}

#[tokio::test(start_paused = true)]
async fn faults_by_share_meet_the_same_requests_every_time() {
    let fixture = start();
    fixture.server.inject(Fault::Error500 { share: 0.5 });
    let mut failed = 0;
    for index in 0..200 {
        let id = format!("r{index}");
        let first = fixture.server.generate(request(&id, index, 1)).await.is_err();
        let second = fixture.server.generate(request(&id, index, 1)).await.is_err();
        assert_eq!(first, second);
        failed += u32::from(first);
    }
    assert!((60..140).contains(&failed), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_takes_longer_by_its_factor() {
    let usual = start().server.generate(request("a", 1, 300)).await.unwrap().total_ns;
    let slowed = start();
    slowed.server.inject(Fault::Slow { factor: 3.0 });
    let slow = slowed.server.generate(request("a", 1, 300)).await.unwrap().total_ns;
    assert!(slow.abs_diff(3 * usual) < 1_000, "{slow} and three times {usual}");
}

#[tokio::test(start_paused = true)]
async fn stopping_the_server_fails_waiting_requests_and_ends_its_task() {
    let fixture = start();
    let running = fixture.spawn(request("a", 1, 300));
    pass_ms(10).await;
    fixture.cancel.cancel();
    assert!(matches!(running.await.unwrap(), Err(SimError::Stopped { .. })));
    fixture.tracker.close();
    fixture.tracker.wait().await;
}

#[tokio::test(start_paused = true)]
async fn streamed_tokens_come_while_it_runs() {
    let fixture = start();
    let (sender, mut chunks) = tokio::sync::mpsc::channel(1_000);
    let mut streamed = request("a", 1, 400);
    streamed.stream = Some(sender);
    let running = fixture.spawn(streamed);
    pass_ms(1_000).await;
    let early = chunks.try_recv().unwrap();
    assert_eq!(early.start, 0);
    assert!(!running.is_finished());
    let response = running.await.unwrap().unwrap();
    let mut tokens = early.token_ids;
    while let Some(chunk) = chunks.recv().await {
        assert_eq!(chunk.start as usize, tokens.len());
        tokens.extend(chunk.token_ids);
    }
    assert_eq!(tokens, response.choices[0].token_ids);
}
