//! No schedule beats the bound. The schedules run token by token on a separate model, which shares only the
//! costs with the bound.

use proptest::prelude::*;

use crate::bounds::{DrawnGroup, FleetModel, Reference, StepBounds};
use rolldock_simengine::ServerConfig;

/// A sample of the model.
#[derive(Debug, Clone, Copy)]
struct Running {
    step: usize,
    left: u32,
    held: u32,
    /// The time of its last preemption. No server can take the sample before that time.
    preempted_at: f64,
}

/// How the model gives samples to servers.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// In the given order, to the first server with space for the tokens that its samples hold now. The latest
    /// sample is preempted when the cache is full, and keeps its tokens without a cost.
    Eager,
    /// The longest sample of a step first, to the fastest server with space for all tokens of the sample at once.
    Clairvoyant,
}

/// A trainer of the model: how long it trains on a step, and how old a group may be.
#[derive(Debug, Clone, Copy)]
struct Training {
    seconds: f64,
    staleness: usize,
}

/// The steps of a run.
struct Steps {
    training: Training,
    /// Samples of each step that have not finished.
    left: Vec<usize>,
    done_at: Vec<f64>,
    claims: Vec<f64>,
}

impl Steps {
    /// The time from which samples of a step may run, if it is known.
    fn released_at(&self, step: usize) -> Option<f64> {
        match step.checked_sub(self.training.staleness + 1) {
            None => Some(0.0),
            Some(trained) => Some(self.claims.get(trained)? + self.training.seconds),
        }
    }

    /// Claims all steps that are complete.
    fn claim(&mut self) {
        while self.left.get(self.claims.len()) == Some(&0) {
            let trainer_is_free = self.claims.last().map_or(0.0, |claim| claim + self.training.seconds);
            self.claims.push(self.done_at[self.claims.len()].max(trainer_is_free));
        }
    }
}

/// Plays a schedule to its end, and returns the seconds until each step is claimed. A prompt costs no prefill
/// and no cache: the model is faster than any real server.
fn play(
    server: &ServerConfig,
    speeds: &[f64],
    steps: &[Vec<u32>],
    prompt: u32,
    rule: Rule,
    training: Training,
) -> Vec<f64> {
    let cache = server.kv_blocks * server.block_tokens;
    let samples = steps.iter().enumerate().flat_map(|(step, lengths)| {
        lengths.iter().map(move |left| Running { step, left: *left, held: 0, preempted_at: 0.0 })
    });
    let mut queue: Vec<Running> = samples.collect();
    let mut order: Vec<usize> = (0..speeds.len()).collect();
    if matches!(rule, Rule::Clairvoyant) {
        queue.sort_by_key(|sample| (sample.step, std::cmp::Reverse(sample.left)));
        order.sort_by(|left, right| speeds[*right].total_cmp(&speeds[*left]));
    }
    let mut batches: Vec<Vec<Running>> = vec![Vec::new(); speeds.len()];
    let mut free_at = vec![0.0_f64; speeds.len()];
    let left = steps.iter().map(Vec::len).collect();
    let mut book = Steps { training, left, done_at: vec![0.0; steps.len()], claims: Vec::new() };
    loop {
        book.claim();
        // The server whose next step begins first takes the samples that fit.
        let may_run_from = |sample: &Running| {
            book.released_at(sample.step).map(|released| released.max(sample.preempted_at))
        };
        let released = queue.iter().filter_map(may_run_from);
        let released = released.min_by(f64::total_cmp).unwrap_or(f64::INFINITY);
        let begin = |index: usize| {
            if batches[index].is_empty() { free_at[index].max(released) } else { free_at[index] }
        };
        let begins = order.iter().map(|index| (*index, begin(*index)));
        let Some((index, at)) =
            begins.filter(|(_, at)| at.is_finite()).min_by(|left, right| left.1.total_cmp(&right.1))
        else {
            return book.claims;
        };
        let batch = &mut batches[index];
        let room = |sample: &Running| match rule {
            Rule::Eager => sample.held + 1,
            Rule::Clairvoyant => sample.held + sample.left,
        };
        let may_run = |sample: &Running| may_run_from(sample).is_some_and(|time| time <= at);
        while let Some(first) = queue.iter().position(may_run) {
            let taken: u32 = batch.iter().map(room).sum();
            if batch.len() as u32 == server.max_num_seqs || taken + room(&queue[first]) > cache {
                break;
            }
            batch.push(queue.remove(first));
        }
        while batch.iter().map(|sample| sample.held + 1).sum::<u32>() > cache {
            let preempted = batch.pop().unwrap();
            queue.insert(0, Running { preempted_at: at, ..preempted });
        }
        // The first token of a sample comes from its prefill, which costs nothing but the step itself.
        let decoding = batch.iter().filter(|sample| sample.held > 0);
        let read: u32 = decoding.clone().map(|sample| sample.held + prompt).sum();
        let ns = server.decode_base_ns as f64
            + decoding.count() as f64 * server.decode_ns_per_seq as f64
            + f64::from(read) * server.decode_ns_per_kv_token as f64;
        free_at[index] = at + ns * 1e-9 / speeds[index];
        for sample in batch.iter_mut() {
            (sample.left, sample.held) = (sample.left - 1, sample.held + 1);
        }
        for sample in batch.iter().filter(|sample| sample.left == 0) {
            book.left[sample.step] -= 1;
            book.done_at[sample.step] = book.done_at[sample.step].max(free_at[index]);
        }
        batch.retain(|sample| sample.left > 0);
    }
}

/// Seconds of one step.
fn play_one(server: &ServerConfig, speeds: &[f64], lengths: &[u32], prompt: u32, rule: Rule) -> f64 {
    let training = Training { seconds: 0.0, staleness: 0 };
    play(server, speeds, &[lengths.to_vec()], prompt, rule, training)[0]
}

fn server(places: u32, blocks: u32, costs: (u64, u64, u64)) -> ServerConfig {
    ServerConfig {
        max_num_seqs: places,
        kv_blocks: blocks,
        block_tokens: 8,
        decode_base_ns: costs.0,
        decode_ns_per_seq: costs.1,
        decode_ns_per_kv_token: costs.2,
        ..ServerConfig::default()
    }
}

fn bounds_of(server: &ServerConfig, speeds: &[f64], prompt: u32, lengths: &[u32]) -> StepBounds {
    fleet_of(server, speeds).bounds(&[group_of(prompt, lengths)])
}

fn fleet_of(server: &ServerConfig, speeds: &[f64]) -> FleetModel {
    FleetModel { server: server.clone(), speeds: speeds.to_vec(), permits: server.max_num_seqs }
}

fn group_of(prompt: u32, lengths: &[u32]) -> DrawnGroup {
    let samples = lengths.iter().map(|tokens| (*tokens, true)).collect();
    DrawnGroup { prompt_tokens: prompt, samples, is_valid: true }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_schedule_beats_the_bound(
        lengths in prop::collection::vec(1_u32..60, 1..60),
        speeds in prop::collection::vec(0.3_f64..2.0, 1..4),
        prompt in 0_u32..40,
        places in 1_u32..20,
        blocks in 8_u32..40,
        costs in (1_000_u64..100_000, 0_u64..20_000, 0_u64..500),
        is_clairvoyant in any::<bool>(),
    ) {
        let server = server(places, blocks, costs);
        let rule = if is_clairvoyant { Rule::Clairvoyant } else { Rule::Eager };
        let time = play_one(&server, &speeds, &lengths, prompt, rule);
        let bounds = bounds_of(&server, &speeds, prompt, &lengths);
        let (plain, bound) = (bounds.fifo_without_cache_s, bounds.fifo_s);
        prop_assert!(plain <= bound, "{plain} {bound}");
        prop_assert!(bound <= time * (1.0 + 1e-9), "{rule:?}: time={time} bound={bound}");
    }

    #[test]
    fn no_schedule_beats_the_bound_of_a_staleness(
        steps in prop::collection::vec(prop::collection::vec(1_u32..60, 1..20), 1..6),
        speeds in prop::collection::vec(0.3_f64..2.0, 1..4),
        places in 1_u32..20,
        blocks in 8_u32..40,
        costs in (1_000_u64..100_000, 0_u64..20_000, 0_u64..500),
        training_us in 0_u64..4_000,
        staleness in 0_usize..4,
        is_clairvoyant in any::<bool>(),
    ) {
        let server = server(places, blocks, costs);
        let rule = if is_clairvoyant { Rule::Clairvoyant } else { Rule::Eager };
        let training = Training { seconds: training_us as f64 * 1e-6, staleness };
        let times = play(&server, &speeds, &steps, 0, rule, training);
        let fleet = fleet_of(&server, &speeds);
        let draws = steps.iter().map(|lengths| group_of(0, lengths));
        let bounds = Reference::new(&fleet, draws, 1, steps.len())
            .claims_s(&fleet, staleness as u64, training.seconds);
        prop_assert_eq!((times.len(), bounds.len()), (steps.len(), steps.len()));
        for (time, bound) in times.iter().zip(&bounds) {
            prop_assert!(*bound <= time * (1.0 + 1e-9), "{rule:?}: times={times:?} bounds={bounds:?}");
        }
    }
}

/// A schedule of the model once beat the bound: a server that had been idle took a preempted sample at a time
/// before the preemption.
#[test]
fn an_idle_server_takes_a_preempted_sample_after_the_preemption() {
    let server = server(3, 8, (1_000, 0, 0));
    let time = play_one(&server, &[1.0, 1.0], &[30, 30, 51], 0, Rule::Eager);
    assert!(time >= 51e-6 * (1.0 - 1e-9), "{time}");
}

#[test]
fn more_staleness_lowers_the_bound_to_the_saturation_and_no_further() {
    // One server runs one sample at a time, and takes a millisecond for a token.
    let (server, steps) = (server(1, 40, (1_000_000, 0, 0)), vec![vec![100_u32]; 20]);
    let fleet = fleet_of(&server, &[1.0]);
    let reference = Reference::new(&fleet, steps.iter().map(|lengths| group_of(0, lengths)), 1, steps.len());
    let step_s = |staleness: u64, training_s: f64| {
        let claims = reference.claims_s(&fleet, staleness, training_s);
        (claims[19] - claims[9]) / 10.0
    };
    let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
    assert!(near(step_s(0, 0.05), 0.15), "the trainer waits for the step, and the fleet for the trainer");
    assert!(near(step_s(1, 0.05), 0.1) && near(step_s(5, 0.05), 0.1), "the fleet is never idle");
    assert!(near(step_s(1, 0.3), 0.3), "the trainer is never idle");
}

#[test]
fn a_full_cache_raises_the_bound_and_a_schedule_comes_near_it() {
    // 640 samples of 100 tokens hold 50 tokens on average, so the cache of 1,600 tokens has room for 32.
    let (server, lengths) = (server(256, 200, (5_000_000, 0, 0)), vec![100; 640]);
    let bounds = bounds_of(&server, &[1.0], 0, &lengths);
    let (plain, bound) = (bounds.fifo_without_cache_s, bounds.fifo_s);
    assert!(bound > plain * 5.0, "{plain} {bound}");
    let time = play_one(&server, &[1.0], &lengths, 0, Rule::Eager);
    assert!((1.0..2.1).contains(&(time / bound)), "{time} {bound}");
}
