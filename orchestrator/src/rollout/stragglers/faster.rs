//! Which samples move to a faster server, or are copied there.
//!
//! A server's time per token depends on the tokens in its KV cache, because every decoding step reads them.
//! The balancer measures this dependence ([`Pace`]), so the time per token on each server is known before and
//! after a move. Response lengths have a heavy tail, so a sample with `g` tokens is expected to need `g` more,
//! within the limit. The move must save a twentieth of the time of these tokens ([`GAIN_MIN`]), beyond the time of
//! the handover and of the prefill of prompt and tokens ([`HANDOVER_S`], [`PREFILL_SHARE`]). It must save more
//! if the paces are uncertain: the times per token of equal servers that share a machine differ by chance, and
//! a sample must not move because of that. The longest samples move first, because a step ends with them.
//!
//! A sample that stays can be asked for a second time on a faster server. Such a copy has to generate the tokens of the
//! running request again, so it must save their time too.
//!
//! If a server with samples has no pace, the speeds by answers are used instead. They do not tell what a
//! further sample costs, so a sample then moves only to a server with fewer samples. An empty server may have ended all
//! of its samples between two readings of its load, and have no pace either. Its speed by answers is used beside the
//! paces of the others, because it is below its speed of decoding: an answer also takes time before its first token.
//!
//! # Invariants
//! A plan never gives a server more samples than it has free places, and fills no cache beyond [`FULL`].

use rolldock_loadbalancer::ServerId;
use rolldock_loadbalancer::server::ServerState;
use rolldock_loadbalancer::snapshot::{Pace, ServerSnapshot};

use super::Key;

/// The time of an abort and of a new request, in seconds: a server answers an abort after its current step,
/// and an abort that reaches it before the request is repeated after up to 0.25 s.
const HANDOVER_S: f64 = 0.5;
/// The time to prefill a token, as a share of the time to decode one. A prefill is bound by arithmetic, and
/// handles hundreds of tokens in the time of one decoding step. The share is deliberately high, so that moves
/// are ordered only if they really save time.
const PREFILL_SHARE: f64 = 1.0 / 32.0;
/// The share of a sample's remaining time that a move must save.
const GAIN_MIN: f64 = 0.05;
/// The number of errors of the measured paces that a move must save beyond [`GAIN_MIN`].
const ERRORS_MIN: f64 = 2.0;
/// Servers are chosen among those on which a sample saves at least this share of the greatest saving.
const NEARLY_BEST: f64 = 0.8;
/// The share of a KV cache that moved samples may fill.
const FULL: f64 = 0.95;
/// The least use of a cache from which its size is estimated.
const SHOWS_SIZE: f64 = 0.02;

/// A server with its places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Place {
    pub(super) server: ServerId,
    pub(super) free: u32,
    /// Whether the server is full, so that its free places are only expected.
    pub(super) is_full: bool,
    pub(super) in_use: u32,
    /// The time per token; `None` if it is not known.
    pub(super) pace: Option<Pace>,
    /// Share of the KV cache in use.
    pub(super) usage: f64,
    /// Prompt and response tokens of the running samples.
    pub(super) held: f64,
}

impl Place {
    /// The number of tokens that fill the cache; `None` if the use of the cache does not show it.
    fn cache_tokens(&self) -> Option<f64> {
        (self.usage > SHOWS_SIZE && self.held > 0.0).then(|| self.held / self.usage)
    }
}

/// The servers that are not dead. If every server with samples has a pace by its engine's own count, these paces are
/// used, and the speed by answers for an empty server without a pace. Otherwise the speeds by answers are used, because
/// the two cannot be compared. A server that takes samples has at least `free_min` free places.
pub(super) fn places(servers: &[ServerSnapshot], free_min: u32) -> Vec<Place> {
    let lives = |server: &&ServerSnapshot| server.state != ServerState::Dead;
    let has_count = |server: &ServerSnapshot| server.in_use == 0 || server.pace.is_some();
    let all_count = servers.iter().filter(lives).all(has_count);
    let by_answers = |server: &ServerSnapshot| {
        let token_s = server.tokens_per_second?.recip();
        Some(Pace { empty_s: token_s, full_s: token_s, error: 0.0 })
    };
    let place = |server: &ServerSnapshot| {
        let takes = server.state == ServerState::Active;
        let free = server.capacity.saturating_sub(server.in_use.saturating_add(server.foreign));
        Place {
            server: server.id,
            free: if takes { free.max(free_min) } else { 0 },
            is_full: free == 0,
            in_use: server.in_use,
            pace: server.pace.filter(|_| all_count).or_else(|| by_answers(server)),
            usage: server.kv_cache_usage,
            held: 0.0,
        }
    };
    servers.iter().filter(lives).map(place).collect()
}

/// A running sample that may move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) key: Key,
    /// The index of its server in the fleet.
    pub(super) from: usize,
    /// Estimated tokens so far.
    pub(super) tokens: f64,
    /// Tokens of the prompt.
    pub(super) prompt: f64,
    /// The tokens that a copy has to generate again, if a copy is asked for while the sample stays.
    pub(super) again: Option<f64>,
}

impl Sample {
    fn held(&self) -> f64 {
        self.prompt + self.tokens
    }

    /// Expected tokens to come.
    fn left(&self, tokens_max: f64) -> f64 {
        self.tokens.min(tokens_max - self.tokens).max(0.0)
    }
}

/// The fleet while moves are planned.
struct Planned {
    places: Vec<Place>,
    /// The size of a cache whose use does not show it, in tokens: the mean of the other caches.
    usual_cache: Option<f64>,
    tokens_max: f64,
}

impl Planned {
    /// The share of a server's cache that this number of tokens takes. It is 0 if no cache shows its size.
    fn share(&self, place: &Place, tokens: f64) -> f64 {
        place.cache_tokens().or(self.usual_cache).map_or(0.0, |size| tokens / size)
    }

    /// The seconds that a move saves; `None` if it is not possible or not worth it.
    fn saves(&self, sample: &Sample, to: &Place) -> Option<f64> {
        let from = &self.places[sample.from];
        let (slow, fast) = (from.pace?, to.pace?);
        let usage = to.usage + self.share(to, sample.held());
        let has_place = to.server != from.server && to.free > 0 && usage <= FULL;
        // A pace that does not depend on the use of the cache does not show what a further sample costs.
        let knows_cost = fast.full_s > fast.empty_s;
        if !has_place || !(knows_cost || to.in_use < from.in_use) {
            return None;
        }
        let (left, fast_s, slow_s) = (sample.left(self.tokens_max), fast.at(usage), slow.at(from.usage));
        let stays_s = left * slow_s;
        let again = sample.again.unwrap_or(0.0);
        // On a full server the sample waits until another one ends. All are taken to need as many tokens as this one.
        let wait_s = if to.is_full { left * fast_s / f64::from(to.in_use.max(1)) } else { 0.0 };
        let cost_s = HANDOVER_S + wait_s + ((sample.held() - again) * PREFILL_SHARE + again) * fast_s;
        // The error of the ratio of the two times.
        let error = fast_s / slow_s * slow.error.hypot(fast.error);
        let least_s = (GAIN_MIN + ERRORS_MIN * error) * stays_s;
        Some(stays_s - left * fast_s - cost_s).filter(|saved| *saved > least_s)
    }

    /// Plans the move or the copy of a sample if it is worth it. Returns the servers that the sample must avoid.
    fn moved(&mut self, sample: &Sample) -> Option<Vec<ServerId>> {
        let saved: Vec<Option<f64>> = self.places.iter().map(|to| self.saves(sample, to)).collect();
        let worth = saved.iter().enumerate().filter_map(|(to, seconds)| Some((to, (*seconds)?)));
        let (best, most) = worth.max_by(|one, other| one.1.total_cmp(&other.1))?;
        // The balancer chooses among the servers that are nearly as good as the best one.
        let is_avoided = |seconds: &Option<f64>| seconds.is_none_or(|seconds| seconds < most * NEARLY_BEST);
        let avoided = self.places.iter().zip(&saved).filter(|(_, seconds)| is_avoided(seconds));
        let avoid = avoided.map(|(place, _)| place.server).collect();
        self.hold(best, sample.held());
        let to = &mut self.places[best];
        (to.free, to.in_use) = (to.free - 1, to.in_use + 1);
        if sample.again.is_none() {
            self.hold(sample.from, -sample.held());
            let from = &mut self.places[sample.from];
            from.in_use = from.in_use.saturating_sub(1);
        }
        Some(avoid)
    }

    /// Adds tokens to a server's cache.
    fn hold(&mut self, place: usize, tokens: f64) {
        let share = self.share(&self.places[place], tokens);
        let place = &mut self.places[place];
        place.usage = (place.usage + share).max(0.0);
        place.held = (place.held + tokens).max(0.0);
    }
}

/// The shortest time per token that a further sample could get.
fn fastest_s(places: &[Place]) -> f64 {
    let open = places.iter().filter(|place| place.free > 0);
    let seconds = open.filter_map(|place| Some(place.pace?.at(place.usage)));
    seconds.fold(f64::INFINITY, f64::min)
}

/// Whether a sample of a server could be faster by more than [`GAIN_MIN`] on the fastest server.
fn gains(from: &Place, fastest_s: f64) -> bool {
    from.pace.is_some_and(|pace| fastest_s <= pace.at(from.usage) * (1.0 - GAIN_MIN))
}

/// Whether any sample could gain. If not, no move is worth it.
pub(super) fn has_faster_place(places: &[Place]) -> bool {
    let fastest_s = fastest_s(places);
    places.iter().any(|place| place.in_use > 0 && gains(place, fastest_s))
}

/// The samples that move or are copied, the longest first, each with the servers that it must avoid.
pub(super) fn plan(
    places: Vec<Place>,
    mut samples: Vec<Sample>,
    tokens_max: f64,
) -> Vec<(Key, Vec<ServerId>)> {
    samples.sort_by(|one, other| other.tokens.total_cmp(&one.tokens).then(one.key.cmp(&other.key)));
    let sizes: Vec<f64> = places.iter().filter_map(Place::cache_tokens).collect();
    let usual_cache = (!sizes.is_empty()).then(|| sizes.iter().sum::<f64>() / sizes.len() as f64);
    let mut fleet = Planned { places, usual_cache, tokens_max };
    let (mut moves, mut fastest) = (Vec::new(), fastest_s(&fleet.places));
    for sample in samples {
        // Most samples are on servers that are as fast as the others. This check is all that they cost.
        if !gains(&fleet.places[sample.from], fastest) {
            continue;
        }
        if let Some(avoid) = fleet.moved(&sample) {
            moves.push((sample.key, avoid));
            fastest = fastest_s(&fleet.places);
        }
    }
    moves
}

#[cfg(test)]
mod tests;
