//! Tests of `group_affinity` in a fleet whose servers are all full: when it keeps the samples of a group together, and
//! what this saves.

use std::collections::BTreeSet;
use std::time::Duration;

use rolldock::data::{DataError, Prompt, PromptSource};
use rolldock::rollout::PromptFeed;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, Policy, ServerSpec};
use rolldock_simengine::ServerConfig;

use crate::support::{World, in_virtual_time, prompt};

const SERVERS: usize = 4;
const PERMITS: u32 = 8;

/// Prompts with this number of tokens.
struct OfLength {
    next: u64,
    tokens: usize,
}

impl PromptSource for OfLength {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        let short = prompt(self.next);
        self.next += 1;
        let ids = short.ids.iter().copied().chain(std::iter::repeat(99)).take(self.tokens).collect();
        Ok(Some(Prompt { ids, ..short }))
    }
}

/// The seconds of a run's second step, and the mean number of servers on which the samples of a group ran. The fleet has four times
/// as many samples as permits. Samples have about 60 tokens.
fn step(policy: Policy, prompt_tokens: usize) -> (f64, f64) {
    in_virtual_time(async {
        // A server computes 1,000 prompt tokens in the time of 40 decoding steps.
        let server = ServerConfig { prefill_ns_per_token: 240_000, ..ServerConfig::default() };
        let mut world = World::calm_on(SERVERS, PERMITS, &server);
        let specs = (0..SERVERS).map(|number| ServerSpec::unreached(format!("s{number}"), PERMITS));
        let config = BalancerConfig { policy, ..BalancerConfig::default() };
        world.balancer = LoadBalancer::new(config, specs.collect()).unwrap();
        world.config.samples_per_prompt = 8;
        world.config.max_concurrent_prompts = 16;
        world.config.gen_batch_size = 64;
        let mut manager = world.manager();
        let feed = PromptFeed::inline(Box::new(OfLength { next: 0, tokens: prompt_tokens }));
        // The length of samples is known after the first step.
        manager.generate(&feed, 16).await.unwrap();
        let output = manager.generate(&feed, 32).await.unwrap();
        world.check_between_steps(&manager);
        let servers = |group: &rolldock::rollout::Group| {
            group.samples.iter().map(|sample| sample.server.clone()).collect::<BTreeSet<_>>().len()
        };
        let spread: usize = output.groups.iter().map(servers).sum();
        world.scope.close(Duration::from_secs(1)).await;
        (output.metrics.elapsed.as_secs_f64(), spread as f64 / output.groups.len() as f64)
    })
}

#[test]
fn groups_with_long_prompts_stay_on_one_server_and_their_step_ends_sooner() {
    let (together_s, together) = step(Policy::GroupAffinity, 512);
    let (apart_s, apart) = step(Policy::LeastLoad, 512);
    assert!(together < 1.7 && apart > 2.5, "{together} servers for a group with affinity, {apart} without");
    assert!(together_s < 0.8 * apart_s, "{together_s} s with affinity, {apart_s} s without");
}

#[test]
fn groups_with_short_prompts_are_spread() {
    let (_, spread) = step(Policy::GroupAffinity, 4);
    assert!(spread > 2.2, "{spread} servers for a group");
}
