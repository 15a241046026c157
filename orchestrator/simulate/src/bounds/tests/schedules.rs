//! No schedule beats the bound. The schedules run on a model of their own, token by token, which shares nothing
//! with the bound but the costs.

use proptest::prelude::*;

use crate::bounds::{DrawnGroup, FleetModel, StepBounds};
use rolldock_simengine::ServerConfig;

/// A sample on a server of the model.
#[derive(Debug, Clone, Copy)]
struct Running {
    left: u32,
    held: u32,
}

/// How the model gives samples to servers.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// In the given order, to the first server with room for what the samples hold now. The latest sample is
    /// preempted when the cache is full, and keeps its tokens without a cost.
    Eager,
    /// The longest first, to the fastest server with room for all of its tokens at once.
    Clairvoyant,
}

/// Plays a schedule to its end, and returns the seconds until the last sample has finished. A prompt costs no
/// prefill and no cache: the model is faster than any real server.
fn play(server: &ServerConfig, speeds: &[f64], lengths: &[u32], prompt: u32, rule: Rule) -> f64 {
    let cache = server.kv_blocks * server.block_tokens;
    let mut queue: Vec<Running> = lengths.iter().map(|left| Running { left: *left, held: 0 }).collect();
    let mut order: Vec<usize> = (0..speeds.len()).collect();
    if matches!(rule, Rule::Clairvoyant) {
        queue.sort_by_key(|sample| std::cmp::Reverse(sample.left));
        order.sort_by(|left, right| speeds[*right].total_cmp(&speeds[*left]));
    }
    let mut batches: Vec<Vec<Running>> = vec![Vec::new(); speeds.len()];
    let mut free_at = vec![0.0_f64; speeds.len()];
    let mut end = 0.0_f64;
    loop {
        // The server whose next step begins first takes what it has room for.
        let busy = |index: &usize| !batches[*index].is_empty() || !queue.is_empty();
        let next = order.iter().copied().filter(|index| busy(index));
        let Some(index) = next.min_by(|left, right| free_at[*left].total_cmp(&free_at[*right])) else {
            return end;
        };
        let batch = &mut batches[index];
        let room = |sample: &Running| match rule {
            Rule::Eager => sample.held + 1,
            Rule::Clairvoyant => sample.held + sample.left,
        };
        while let Some(first) = queue.first().copied() {
            let taken: u32 = batch.iter().map(room).sum();
            if batch.len() as u32 == server.max_num_seqs || taken + room(&first) > cache {
                break;
            }
            batch.push(queue.remove(0));
        }
        while batch.iter().map(|sample| sample.held + 1).sum::<u32>() > cache {
            queue.insert(0, batch.pop().unwrap());
        }
        // The first token of a sample comes from its prefill, which costs nothing but the step itself.
        let decoding = batch.iter().filter(|sample| sample.held > 0);
        let read: u32 = decoding.clone().map(|sample| sample.held + prompt).sum();
        let ns = server.decode_base_ns as f64
            + decoding.count() as f64 * server.decode_ns_per_seq as f64
            + f64::from(read) * server.decode_ns_per_kv_token as f64;
        free_at[index] += ns * 1e-9 / speeds[index];
        end = end.max(free_at[index]);
        for sample in batch.iter_mut() {
            (sample.left, sample.held) = (sample.left - 1, sample.held + 1);
        }
        batch.retain(|sample| sample.left > 0);
    }
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
    let samples = lengths.iter().map(|tokens| (*tokens, true)).collect();
    let group = DrawnGroup { prompt_tokens: prompt, samples, is_valid: true };
    let fleet = FleetModel { server: server.clone(), speeds: speeds.to_vec(), permits: server.max_num_seqs };
    fleet.bounds(&[group])
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
        let time = play(&server, &speeds, &lengths, prompt, rule);
        let bounds = bounds_of(&server, &speeds, prompt, &lengths);
        let (plain, bound) = (bounds.fifo_without_cache_s, bounds.fifo_s);
        prop_assert!(plain <= bound, "{plain} {bound}");
        prop_assert!(bound <= time * (1.0 + 1e-9), "{rule:?}: time={time} bound={bound}");
    }
}

#[test]
fn a_full_cache_raises_the_bound_and_a_schedule_comes_near_it() {
    // 640 samples of 100 tokens hold 50 tokens on average, so the cache of 1,600 tokens has room for 32.
    let (server, lengths) = (server(256, 200, (5_000_000, 0, 0)), vec![100; 640]);
    let bounds = bounds_of(&server, &[1.0], 0, &lengths);
    let (plain, bound) = (bounds.fifo_without_cache_s, bounds.fifo_s);
    assert!(bound > plain * 5.0, "{plain} {bound}");
    let time = play(&server, &[1.0], &lengths, 0, Rule::Eager);
    assert!((1.0..2.1).contains(&(time / bound)), "{time} {bound}");
}
