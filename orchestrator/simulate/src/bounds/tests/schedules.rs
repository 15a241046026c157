//! No schedule beats the bound. The schedules run token by token on a separate model, which shares only the
//! costs with the bound.

use std::collections::BTreeSet;

use proptest::collection::SizeRange;
use proptest::prelude::*;

use crate::bounds::{DrawnGroup, FleetModel, Reference};
use rolldock_simengine::ServerConfig;

/// The prompts of the model. All have the same length and the same beginning.
#[derive(Debug, Clone, Copy, Default)]
struct Prompts {
    tokens: u32,
    /// Tokens of the common beginning.
    common: u32,
}

impl Prompts {
    fn ids(self, number: usize) -> Vec<u32> {
        (0..self.tokens).map(|at| if at < self.common { 0 } else { number as u32 + 1 }).collect()
    }

    /// The full blocks that a server holds for samples of these prompts.
    fn full_blocks(self, numbers: &BTreeSet<usize>, block: u32) -> u32 {
        let (full, common) = (self.tokens / block, self.common.min(self.tokens) / block);
        if numbers.is_empty() { 0 } else { common + numbers.len() as u32 * (full - common) }
    }

    /// The blocks of samples on one server.
    fn blocks<'a>(
        self,
        samples: impl Iterator<Item = &'a Running> + Clone,
        block: u32,
        tokens: fn(&Running) -> u32,
    ) -> u32 {
        let numbers = samples.clone().map(|sample| sample.prompt).collect();
        let own = |sample: &Running| (self.tokens % block + tokens(sample)).div_ceil(block);
        self.full_blocks(&numbers, block) + samples.map(own).sum::<u32>()
    }

    /// The tokens that a server computes for a sample, if it has computed the prompts `known`. A server of the model
    /// never forgets a prompt.
    fn uncached(self, number: usize, known: &BTreeSet<usize>, block: u32) -> u32 {
        let cached = match known.contains(&number) {
            true => self.tokens / block,
            false if known.is_empty() => 0,
            false => self.common.min(self.tokens) / block,
        };
        self.tokens - cached.min(self.tokens.saturating_sub(1) / block) * block
    }
}

/// The samples of a step that have the same prompt.
type Lengths = (usize, Vec<u32>);

/// A sample of the model.
#[derive(Debug, Clone, Copy)]
struct Running {
    step: usize,
    prompt: usize,
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

/// A server of the model.
#[derive(Debug, Clone, Default)]
struct Server {
    batch: Vec<Running>,
    free_at: f64,
    /// The prompts that the server has computed.
    known: BTreeSet<usize>,
}

impl Server {
    /// The blocks of the samples of the batch, and of `next`. `tokens` tells the response tokens of a sample that
    /// count.
    fn blocks(
        &self,
        prompts: Prompts,
        block: u32,
        next: Option<&Running>,
        tokens: fn(&Running) -> u32,
    ) -> u32 {
        prompts.blocks(self.batch.iter().chain(next), block, tokens)
    }

    /// The blocks of the samples that decode in the next step.
    fn blocks_decoding(&self, prompts: Prompts, block: u32) -> u32 {
        prompts.blocks(self.batch.iter().filter(|sample| sample.held > 0), block, |sample| sample.held)
    }

    /// The cost of the next step in ns, and the tokens of prompts that it computes. The first token of a sample comes
    /// from the computation of its prompt.
    fn step_ns(&mut self, config: &ServerConfig, prompts: Prompts) -> (f64, u32) {
        let (mut decoding, mut read, mut prefilled) = (0_u32, 0, 0);
        for sample in &self.batch {
            if sample.held > 0 {
                decoding += 1;
                read += sample.held + prompts.tokens;
            } else {
                prefilled += prompts.uncached(sample.prompt, &self.known, config.block_tokens);
                self.known.insert(sample.prompt);
            }
        }
        let ns = config.decode_base_ns as f64
            + f64::from(decoding) * config.decode_ns_per_seq as f64
            + f64::from(read) * config.decode_ns_per_kv_token as f64
            + f64::from(prefilled) * config.prefill_ns_per_token as f64;
        (ns, prefilled)
    }
}

/// The result of a schedule.
#[derive(Debug, Default)]
struct Played {
    /// Seconds until each step is claimed.
    claims: Vec<f64>,
    /// The sum, over all steps of all servers, of the blocks of the samples that decode.
    held: f64,
    /// Tokens of prompts that were computed.
    prefilled: f64,
}

/// Plays a schedule to its end. Tokens of preempted samples cost nothing: the model is faster than any real server.
fn play(
    config: &ServerConfig,
    speeds: &[f64],
    steps: &[Vec<Lengths>],
    prompts: Prompts,
    rule: Rule,
    training: Training,
) -> Played {
    let samples = steps.iter().enumerate().flat_map(|(step, groups)| {
        let of_group = move |(prompt, lengths): &Lengths| {
            let sample =
                move |left: &u32| Running { step, prompt: *prompt, left: *left, held: 0, preempted_at: 0.0 };
            lengths.iter().map(sample).collect::<Vec<_>>()
        };
        groups.iter().flat_map(of_group)
    });
    let mut queue: Vec<Running> = samples.collect();
    let mut order: Vec<usize> = (0..speeds.len()).collect();
    if matches!(rule, Rule::Clairvoyant) {
        queue.sort_by_key(|sample| (sample.step, std::cmp::Reverse(sample.left)));
        order.sort_by(|left, right| speeds[*right].total_cmp(&speeds[*left]));
    }
    let mut servers = vec![Server::default(); speeds.len()];
    let left = steps.iter().map(|groups| groups.iter().map(|(_, lengths)| lengths.len()).sum()).collect();
    let mut book = Steps { training, left, done_at: vec![0.0; steps.len()], claims: Vec::new() };
    let mut played = Played::default();
    loop {
        book.claim();
        // The server whose next step begins first takes the samples that fit.
        let may_run_from = |sample: &Running| {
            book.released_at(sample.step).map(|released| released.max(sample.preempted_at))
        };
        let released = queue.iter().filter_map(may_run_from);
        let released = released.min_by(f64::total_cmp).unwrap_or(f64::INFINITY);
        let begin = |index: usize| {
            let server: &Server = &servers[index];
            if server.batch.is_empty() { server.free_at.max(released) } else { server.free_at }
        };
        let begins = order.iter().map(|index| (*index, begin(*index)));
        let Some((index, at)) =
            begins.filter(|(_, at)| at.is_finite()).min_by(|left, right| left.1.total_cmp(&right.1))
        else {
            return Played { claims: book.claims, ..played };
        };
        let server = &mut servers[index];
        let room: fn(&Running) -> u32 = match rule {
            Rule::Eager => |sample| sample.held,
            Rule::Clairvoyant => |sample| sample.held + sample.left - 1,
        };
        let may_run = |sample: &Running| may_run_from(sample).is_some_and(|time| time <= at);
        let block = config.block_tokens;
        while let Some(first) = queue.iter().position(may_run) {
            let has_place = (server.batch.len() as u32) < config.max_num_seqs;
            if !has_place || server.blocks(prompts, block, Some(&queue[first]), room) > config.kv_blocks {
                break;
            }
            server.batch.push(queue.remove(first));
        }
        while server.blocks(prompts, block, None, |sample| sample.held) > config.kv_blocks {
            let preempted = server.batch.pop().unwrap();
            queue.insert(0, Running { preempted_at: at, ..preempted });
        }
        played.held += f64::from(server.blocks_decoding(prompts, block));
        let (ns, prefilled) = server.step_ns(config, prompts);
        played.prefilled += f64::from(prefilled);
        server.free_at = at + ns * 1e-9 / speeds[index];
        for sample in server.batch.iter_mut() {
            (sample.left, sample.held) = (sample.left - 1, sample.held + 1);
        }
        for sample in server.batch.iter().filter(|sample| sample.left == 0) {
            book.left[sample.step] -= 1;
            book.done_at[sample.step] = book.done_at[sample.step].max(server.free_at);
        }
        server.batch.retain(|sample| sample.left > 0);
    }
}

/// Plays one step.
fn play_one(
    config: &ServerConfig,
    speeds: &[f64],
    groups: &[Lengths],
    prompts: Prompts,
    rule: Rule,
) -> Played {
    let training = Training { seconds: 0.0, staleness: 0 };
    play(config, speeds, &[groups.to_vec()], prompts, rule, training)
}

fn server(places: u32, blocks: u32, costs: (u64, u64, u64, u64)) -> ServerConfig {
    ServerConfig {
        max_num_seqs: places,
        kv_blocks: blocks,
        block_tokens: 8,
        decode_base_ns: costs.0,
        decode_ns_per_seq: costs.1,
        decode_ns_per_kv_token: costs.2,
        prefill_ns_per_token: costs.3,
        ..ServerConfig::default()
    }
}

/// The reference of one step.
fn reference(config: &ServerConfig, speeds: &[f64], prompts: Prompts, groups: &[Lengths]) -> Reference {
    let draws = groups.iter().map(|group| drawn(prompts, group));
    Reference::new(&fleet_of(config, speeds), draws, groups.len(), 1)
}

fn fleet_of(config: &ServerConfig, speeds: &[f64]) -> FleetModel {
    FleetModel { server: config.clone(), speeds: speeds.to_vec(), permits: config.max_num_seqs }
}

fn drawn(prompts: Prompts, (prompt, lengths): &Lengths) -> DrawnGroup {
    let samples = lengths.iter().map(|tokens| (*tokens, true)).collect();
    DrawnGroup { prompt_ids: prompts.ids(*prompt).into(), samples, is_valid: true }
}

/// Groups of few prompts, so that some have the same one.
fn groups(number: impl Into<SizeRange>) -> impl Strategy<Value = Vec<Lengths>> {
    prop::collection::vec((0_usize..6, prop::collection::vec(1_u32..60, 1..12)), number)
}

/// Steps with equal numbers of groups.
fn steps() -> impl Strategy<Value = Vec<Vec<Lengths>>> {
    (1_usize..4).prop_flat_map(|number| prop::collection::vec(groups(number), 1..6))
}

fn prompts() -> impl Strategy<Value = Prompts> {
    (0_u32..40, 0_u32..40).prop_map(|(tokens, common)| Prompts { tokens, common })
}

/// Costs of a server in ns: of a step, per sample, per token in the cache, per token of a prompt.
fn costs() -> impl Strategy<Value = (u64, u64, u64, u64)> {
    (1_000_u64..100_000, 0_u64..20_000, 0_u64..500, 0_u64..20_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_schedule_beats_the_bound(
        groups in groups(1..6),
        speeds in prop::collection::vec(0.3_f64..2.0, 1..4),
        prompts in prompts(),
        places in 1_u32..20,
        blocks in 16_u32..40,
        costs in costs(),
        is_clairvoyant in any::<bool>(),
    ) {
        let config = server(places, blocks, costs);
        let rule = if is_clairvoyant { Rule::Clairvoyant } else { Rule::Eager };
        let played = play_one(&config, &speeds, &groups, prompts, rule);
        let time = played.claims[0];
        let reference = reference(&config, &speeds, prompts, &groups);
        let (plain, bound) = (reference.fifo_without_cache_s, reference.fifo_s);
        prop_assert!(plain <= bound, "{plain} {bound}");
        prop_assert!(bound <= time * (1.0 + 1e-9), "{rule:?}: time={time} bound={bound}");
        // The time seldom comes near the bound, but each part of the work does.
        prop_assert!(reference.work[0].held <= played.held, "{:?} {played:?}", reference.work);
        prop_assert!(reference.work[0].prefilled <= played.prefilled, "{:?} {played:?}", reference.work);
    }

    #[test]
    fn no_schedule_beats_the_bound_of_a_staleness(
        steps in steps(),
        speeds in prop::collection::vec(0.3_f64..2.0, 1..4),
        prompts in prompts(),
        places in 1_u32..20,
        blocks in 16_u32..40,
        costs in costs(),
        training_us in 0_u64..4_000,
        staleness in 0_usize..4,
        is_clairvoyant in any::<bool>(),
    ) {
        let config = server(places, blocks, costs);
        let rule = if is_clairvoyant { Rule::Clairvoyant } else { Rule::Eager };
        let training = Training { seconds: training_us as f64 * 1e-6, staleness };
        let times = play(&config, &speeds, &steps, prompts, rule, training).claims;
        let fleet = fleet_of(&config, &speeds);
        let draws = steps.iter().flatten().map(|group| drawn(prompts, group));
        let bounds = Reference::new(&fleet, draws, steps[0].len(), steps.len())
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
    let server = server(3, 8, (1_000, 0, 0, 0));
    let time =
        play_one(&server, &[1.0, 1.0], &[(0, vec![30, 30, 51])], Prompts::default(), Rule::Eager).claims[0];
    assert!(time >= 51e-6 * (1.0 - 1e-9), "{time}");
}

#[test]
fn more_staleness_lowers_the_bound_to_the_saturation_and_no_further() {
    // One server runs one sample at a time, and takes a millisecond for a token.
    let (server, steps) = (server(1, 40, (1_000_000, 0, 0, 0)), vec![(0, vec![100_u32]); 20]);
    let fleet = fleet_of(&server, &[1.0]);
    let draws = steps.iter().map(|group| drawn(Prompts::default(), group));
    let reference = Reference::new(&fleet, draws, 1, steps.len());
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
    let (server, groups) = (server(256, 200, (5_000_000, 0, 0, 0)), [(0, vec![100; 640])]);
    let reference = reference(&server, &[1.0], Prompts::default(), &groups);
    let (plain, bound) = (reference.fifo_without_cache_s, reference.fifo_s);
    assert!(bound > plain * 5.0, "{plain} {bound}");
    let time = play_one(&server, &[1.0], &groups, Prompts::default(), Rule::Eager).claims[0];
    assert!((1.0..2.1).contains(&(time / bound)), "{time} {bound}");
}

#[test]
fn prompts_raise_the_bound_once_for_each_group() {
    // The cache has 20 blocks of 8 tokens. A step costs 1 ms, a token of a prompt 0.1 ms.
    let server = server(64, 20, (1_000_000, 0, 0, 100_000));
    let seconds = |prompts, groups: &[Lengths]| reference(&server, &[1.0], prompts, groups).saturation_s;
    let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} {other}");
    // 8 decode steps of 4 samples hold a block each, and the group holds the 4 full blocks of its prompt. Of the
    // prompt, each sample computes 8 tokens, and the first one 24 more.
    let prompts = Prompts { tokens: 32, common: 0 };
    let group = |prompt| (prompt, vec![9; 4]);
    let one = (8.0 * (4.0 + 4.0) / 20.0) * 1e-3 + (4.0 * 8.0 + 24.0) * 1e-4;
    near(seconds(prompts, &[group(0)]), one);
    near(seconds(prompts, &[group(0), group(1)]), 2.0 * one);
    // A second group with the same prompt may run on the same server at the same time.
    near(seconds(prompts, &[group(0), group(0)]), one + (8.0 * 4.0 / 20.0) * 1e-3 + 32.0 * 1e-4);
    // Two of the four blocks are common.
    let common = Prompts { common: 16, ..prompts };
    near(
        seconds(common, &[group(0), group(1)]),
        one + (8.0 * (4.0 + 2.0) / 20.0) * 1e-3 + (32.0 + 8.0) * 1e-4,
    );
    // Without a full block, each sample holds and computes the prompt beside its response.
    let short = Prompts { tokens: 4, common: 0 };
    near(seconds(short, &[group(0)]), (4.0 * (4.0 + 2.0 * 4.0) / 20.0) * 1e-3 + 16.0 * 1e-4);
}
