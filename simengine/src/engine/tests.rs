use std::sync::Arc;

use proptest::prelude::*;
use tokio::sync::oneshot;

use super::PauseMode;
use super::batch::Batch;
use super::{Admission, Core, block_chain};
use crate::workload::{Plan, PlanRequest, Workload};
use crate::{Fault, NoAnswers, ServerConfig, WorkloadConfig, invariants};

/// One action of a random test: a call to the engine, or time that passes.
#[derive(Debug, Clone)]
enum Action {
    Submit { prompt: u32, samples: u32, tokens: u32 },
    Cancel { request: usize },
    Abort { request: usize },
    Pass { span_ns: u64 },
    Pause(PauseMode),
    Resume,
    Version(u8),
    ResetPrefixes(bool),
    Inject(Fault),
    Heal,
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (1_u32..120, 1_u32..5, 1_u32..60)
            .prop_map(|(prompt, samples, tokens)| Action::Submit { prompt, samples, tokens }),
        2 => (0_usize..40).prop_map(|request| Action::Cancel { request }),
        1 => (0_usize..40).prop_map(|request| Action::Abort { request }),
        8 => (0_u64..400_000_000).prop_map(|span_ns| Action::Pass { span_ns }),
        1 => prop_oneof![Just(PauseMode::Abort), Just(PauseMode::Wait), Just(PauseMode::Keep)]
            .prop_map(Action::Pause),
        2 => Just(Action::Resume),
        1 => any::<u8>().prop_map(Action::Version),
        1 => any::<bool>().prop_map(Action::ResetPrefixes),
        1 => prop_oneof![Just(Fault::Stall), Just(Fault::Die), Just(Fault::SigTerm),
            Just(Fault::Slow { factor: 2.5 })].prop_map(Action::Inject),
        2 => Just(Action::Heal),
    ]
}

/// The configuration of a server that is so small that samples have to wait, prefixes are evicted and sequences
/// are preempted.
fn tight() -> ServerConfig {
    ServerConfig {
        max_num_seqs: 5,
        kv_blocks: 48,
        block_tokens: 4,
        max_model_len: 190,
        max_num_batched_tokens: 150,
        abort_race_ms: 0,
        ..ServerConfig::default()
    }
}

struct Driver {
    core: Core,
    workload: Arc<Workload>,
    now_ns: u64,
    submitted: Vec<(u64, u32, u32, oneshot::Receiver<super::sequence::Outcome>)>,
}

impl Driver {
    fn new(config: ServerConfig) -> Self {
        let workload = Arc::new(Workload::new(WorkloadConfig::default()));
        Self { core: Core::new(config), workload, now_ns: 0, submitted: Vec::new() }
    }

    fn submit(&mut self, prompt: u32, samples: u32, tokens: u32) {
        let prompt_ids: Vec<u32> = (0..prompt).collect();
        let ends = PlanRequest {
            max_tokens: tokens,
            min_tokens: 0,
            ignore_eos: true,
            stop_token_ids: &[],
            stop_scan: None,
        };
        let plan = |seed| {
            let draw = self.workload.draw(&prompt_ids, seed, &NoAnswers);
            Plan::new(&self.workload, draw, None, ends)
        };
        let (reply, outcome) = oneshot::channel();
        let admission = Admission {
            request_id: Arc::from(format!("r{}", self.submitted.len())),
            prompt_tokens: prompt,
            chain: block_chain(&prompt_ids, 4),
            plans: (0..u64::from(samples)).map(plan).collect(),
            stream: None,
            generated: None,
            reply,
        };
        if let Ok(number) = self.core.submit(admission, self.now_ns) {
            self.submitted.push((number, samples, tokens, outcome));
        }
    }

    fn act(&mut self, action: Action) {
        let now_ns = self.now_ns;
        match action {
            Action::Submit { prompt, samples, tokens } => self.submit(prompt, samples, tokens),
            Action::Cancel { request } => {
                if let Some((number, ..)) = self.submitted.get(request) {
                    self.core.cancel(*number, now_ns);
                }
            }
            Action::Abort { request } => self.core.abort(&Arc::from(format!("r{request}")), now_ns),
            Action::Pass { span_ns } => self.now_ns += span_ns,
            Action::Pause(mode) => drop(self.core.pause(mode, now_ns)),
            Action::Resume => self.core.resume(now_ns),
            Action::Version(version) => self.core.update_version(Arc::from(version.to_string()), now_ns),
            Action::ResetPrefixes(recompute) => {
                self.core.reset_prefix_cache(recompute, now_ns);
            }
            Action::Inject(fault) => self.core.inject(fault, now_ns),
            Action::Heal => self.core.heal(now_ns),
        }
        self.core.advance(self.now_ns);
    }
}

proptest! {
    #[test]
    fn the_invariants_hold_whatever_happens(script in prop::collection::vec(actions(), 1..80)) {
        let mut driver = Driver::new(tight());
        for action in script {
            driver.act(action);
            let verdict = invariants::check(&driver.core.census());
            prop_assert!(verdict.is_ok(), "{:?}", verdict);
        }
        driver.core.heal(driver.now_ns);
        driver.core.resume(driver.now_ns);
        // All requests end within this time, even if samples run one after the other.
        driver.now_ns += 3_600_000_000_000;
        driver.core.advance(driver.now_ns);
        let census = driver.core.census();
        prop_assert_eq!((census.running, census.queued, census.blocks_used), (0, 0, 0));
        for (number, samples, tokens, mut outcome) in driver.submitted {
            // A cancelled request has no outcome. A request that a fault ended has an error.
            let Ok(Ok(completion)) = outcome.try_recv() else { continue };
            prop_assert_eq!(completion.endings.len(), samples as usize, "request {}", number);
            for ending in completion.endings {
                let is_whole = ending.finish_reason != crate::request::FinishReason::Abort;
                prop_assert!(ending.tokens == tokens || (!is_whole && ending.tokens < tokens));
                let covered = ending.version_spans.last().map_or(0, |span| span.end);
                prop_assert_eq!(covered, ending.tokens);
                let gaps = ending.version_spans.windows(2).any(|pair| pair[0].end != pair[1].start);
                prop_assert!(!gaps);
            }
        }
    }

    #[test]
    fn extra_advances_do_not_change_the_times(
        requests in prop::collection::vec((1_u32..120, 1_u32..5, 1_u32..60), 1..12),
        advances in prop::collection::vec(1_u64..50_000_000, 0..60),
    ) {
        let ends = |advances: &[u64]| {
            let mut driver = Driver::new(tight());
            for (prompt, samples, tokens) in &requests {
                driver.submit(*prompt, *samples, *tokens);
            }
            for span_ns in advances {
                driver.now_ns += span_ns;
                driver.core.advance(driver.now_ns);
            }
            driver.core.advance(3_600_000_000_000);
            let outcomes = driver.submitted.iter_mut().map(|(.., outcome)| outcome.try_recv().unwrap().unwrap());
            outcomes.map(|completion| (completion.first_token_ns, completion.total_ns)).collect::<Vec<_>>()
        };
        prop_assert_eq!(ends(&advances), ends(&[]));
    }

    #[test]
    fn block_arithmetic_agrees_with_counting(
        members in prop::collection::vec((1_u64..200, 0_u64..30), 1..20),
        steps in 0_u64..100, blocks in 0_u64..60,
    ) {
        let block_tokens = 16;
        let mut batch = Batch::new(16);
        let mut tokens = Vec::new();
        for (number, (kv_tokens, lag)) in (0_u64..).zip(members) {
            batch.join(number, kv_tokens, 1_000);
            tokens.push(kv_tokens);
            batch.advance(lag);
            tokens.iter_mut().for_each(|count| *count += lag);
        }
        let held = |ahead: u64| tokens.iter().map(|count| (count + ahead).div_ceil(block_tokens)).sum::<u64>();
        prop_assert_eq!(batch.blocks_needed(steps), held(steps) - held(0));
        let enough = (0..=steps).rev().find(|ahead| held(*ahead) - held(0) <= blocks).unwrap();
        prop_assert_eq!(batch.steps_within(blocks, steps), enough);
        prop_assert_eq!(batch.kv_tokens(), tokens.iter().sum::<u64>());
    }
}
