//! Explains why a step has not ended: what the step waits for, and what would end the wait.

use rolldock_queue::TaskStats;

use super::status::{QueueStatus, ServerStatus, Stage, Status};
use crate::process::plural;
use crate::rollout::{EarlyStop, GroupLook, Hold, Phase, RequestShape, StepLook, WaitLook};

/// The maximum number of samples of a group that are listed one by one.
const SAMPLES_LISTED_MAX: usize = 16;
/// A server is called slow if the median of the other servers is at least this many times as fast.
const SLOW: f64 = 2.0;

/// Explains the state of the run. The text has several lines.
pub fn why(status: &Status) -> String {
    let mut lines = vec![headline(status)];
    lines.extend(status.full_disk.as_ref().map(|full| {
        format!(
            "The ledger waits until its disk has room: {full}. If the queue is on this disk, consuming its rows frees \
             space. Without room, the run ends after timeouts.queue_put."
        )
    }));
    lines.extend(status.put_lacks.as_ref().map(|lack| {
        format!(
            "A group waits until it can be put into the queue: {lack}. The run tries it again until timeouts.queue_put is \
             over."
        )
    }));
    match (status.stage, status.step.is_open, &status.step.oldest) {
        (Stage::Serving, ..) => lines.push(left_in_queue(&status.queue)),
        (_, true, Some(oldest)) => lines.extend(of_group(oldest, status)),
        (_, true, None) => lines.push("No group is in flight.".to_owned()),
        (_, false, _) => lines.extend(between_steps(status)),
    }
    if status.stage != Stage::Serving {
        lines.extend(held_back(status));
    }
    lines.join("\n")
}

fn seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// The number with the words for one thing or for several.
fn counted(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn rate(tokens_per_second: f64) -> String {
    if tokens_per_second < 10.0 {
        format!("{tokens_per_second:.1} tokens/s")
    } else {
        format!("{tokens_per_second:.0} tokens/s")
    }
}

fn headline(status: &Status) -> String {
    let StepLook { step, counts, is_open, .. } = &status.step;
    match status.stage {
        Stage::Serving => "All steps are done; the run serves its queue until every row is acked.".to_owned(),
        Stage::Validating => {
            format!("A validation runs after step {step}; the run continues when the validation ends.")
        }
        Stage::Collecting if !is_open && counts.running > 0 => {
            format!("Step {step} is over; {} of its groups are being cut off.", counts.running)
        }
        Stage::Collecting if *step == 0 => "No step has begun.".to_owned(),
        Stage::Collecting if !is_open => format!("Step {step} is over, and the next one has not begun."),
        Stage::Collecting => {
            let missing = counts.target.saturating_sub(counts.valid);
            let age = seconds(status.step_age_s);
            format!(
                "Step {step} has run for {age}: {} of {} accepted, {} more valid, {missing} missing.",
                counts.accepted,
                plural(counts.target as u64, "group"),
                counts.valid.saturating_sub(counts.accepted)
            )
        }
    }
}

/// Describes what the oldest group waits for, and what would end the wait.
fn of_group(group: &GroupLook, status: &Status) -> Vec<String> {
    let GroupLook { dispatch, number, prompt_uid, row, .. } = group;
    let mut lines = vec![
        format!("It ends {}.", ends_when(group, &status.step)),
        format!(
            "The oldest group that has not ended is that of dispatch {dispatch} (number {number}, prompt {prompt_uid}, row \
             {row})."
        ),
    ];
    let Some(age) = group.age_s else {
        let running = counted(status.step.counts.running, "group runs", "groups run");
        lines.push(format!("  Its prompt waits to be sent out again; {running}."));
        return lines;
    };
    let (age, samples) = (seconds(age), status.samples_per_prompt);
    lines.push(match status.request {
        RequestShape::Sample => {
            let waiting = group.waits.iter().filter(|wait| wait.sample.is_some()).count();
            let finished = u64::from(samples).saturating_sub(waiting as u64);
            let have = if finished == 1 { "has" } else { "have" };
            let samples = plural(samples.into(), "sample");
            format!("  It has run for {age}. {finished} of its {samples} {have} finished. It waits for:")
        }
        RequestShape::Group => {
            let samples = counted(samples as usize, "sample is", "samples are");
            format!("  It has run for {age}. Its {samples} one request. It waits for:")
        }
    });
    lines.extend(group.waits.iter().take(SAMPLES_LISTED_MAX).map(wait_line));
    let further = group.waits.len().saturating_sub(SAMPLES_LISTED_MAX);
    if further > 0 {
        lines.push(format!("    and {further} more"));
    }
    lines.extend(servers_of(group, status));
    lines.extend(what_ends(group, status));
    lines
}

fn ends_when(group: &GroupLook, step: &StepLook) -> String {
    let missing = step.counts.target.saturating_sub(step.counts.accepted);
    let waiting = counted(group.behind, "valid group waits", "valid groups wait");
    let behind = if group.behind == 0 { String::new() } else { format!("; {waiting} for the oldest one") };
    match step.early_stop {
        EarlyStop::Fifo => {
            let groups = counted(missing, "more group is", "more groups are");
            format!("when {groups} accepted, in dispatch order{behind}")
        }
        EarlyStop::First if missing == 1 => "when 1 more group is valid, whichever it is".to_owned(),
        EarlyStop::First => format!("when {missing} more groups are valid, whichever they are"),
        EarlyStop::Off => format!("when every group that was sent out has ended{behind}"),
    }
}

fn wait_line(wait: &WaitLook) -> String {
    let sample = wait.sample.map_or("    the group".to_owned(), |sample| format!("    sample {sample}"));
    let place = match (wait.phase, &wait.server) {
        (Phase::Permit, _) => "a permit on a server".to_owned(),
        (Phase::Engine, Some(server)) => format!("an answer of {server}"),
        (Phase::Engine, None) => "an answer".to_owned(),
        (Phase::Environment, _) => "its environment".to_owned(),
        (Phase::Start, _) => "its start".to_owned(),
        (Phase::Reward, _) => "its reward".to_owned(),
        (phase, _) => phase.to_string(),
    };
    let tokens = wait.tokens.map_or(String::new(), |tokens| format!(", {tokens} tokens so far"));
    let detail = wait.detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})"));
    format!("{sample}: {place}{detail}, for {}{tokens}", seconds(wait.age_s))
}

/// The servers for which the group waits. The rate of each server is compared with the rates of the other
/// servers.
fn servers_of(group: &GroupLook, status: &Status) -> Vec<String> {
    let mut names: Vec<&str> = group.waits.iter().filter_map(|wait| wait.server.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    let known = names.iter().filter_map(|name| status.servers.iter().find(|server| server.name == *name));
    known.map(|server| server_line(server, &status.servers)).collect()
}

fn server_line(server: &ServerStatus, fleet: &[ServerStatus]) -> String {
    let ServerStatus { name, state, in_use, capacity, .. } = server;
    let reason = server.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    let line = format!("{name} is {state}{reason}, with {in_use} of {capacity} permits taken.\n  ");
    let Some(own) = server.tokens_per_second else { return format!("{line}Its rate is not known yet.") };
    let line = format!("{line}It generates {} for each sample", rate(own));
    let Some(others) = median_of_others(server, fleet) else { return format!("{line}.") };
    let compared = match others / own {
        times if times >= SLOW && times.is_finite() => format!("{times:.0} times as fast"),
        times if times >= SLOW => "while this one generates nothing".to_owned(),
        times if times * SLOW <= 1.0 => "slower than this one".to_owned(),
        _ => "about as fast".to_owned(),
    };
    format!("{line}, and the others {} (median), {compared}.", rate(others))
}

/// The median rate of the other servers of the fleet whose rates are known. If the number of rates is even,
/// the result is the higher of the two middle rates.
fn median_of_others(server: &ServerStatus, fleet: &[ServerStatus]) -> Option<f64> {
    let others = fleet.iter().filter(|other| other.name != server.name);
    let mut rates: Vec<f64> = others.filter_map(|other| other.tokens_per_second).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// Describes what would end the wait of the group: a result, a time limit, or an action of the user.
fn what_ends(group: &GroupLook, status: &Status) -> Vec<String> {
    let limits = &status.limits;
    let has = |phase: Phase| group.waits.iter().any(|wait| wait.phase == phase);
    if has(Phase::Engine) {
        let mut lines = vec![
            "What ends this: the answers.".to_owned(),
            format!(
                "  A server that generates nothing for timeouts.stall={} s counts as dead; its samples start again on \
                 others.",
                limits.stall_s
            ),
            format!("  A sample that is not finished after timeouts.sample={} s fails.", limits.sample_s),
        ];
        if let Some(name) = slow_servers(group, status).first() {
            lines.push(format!(
                "  `rolldock fleet remove {name}` (with fleet.admin) starts its samples again on the others now."
            ));
        }
        return lines;
    }
    if has(Phase::Permit) {
        return vec![format!(
            "What ends this: a permit that another sample returns. The wait fails after timeouts.permit={} s.",
            limits.permit_s
        )];
    }
    if has(Phase::Environment) {
        return vec![format!(
            "What ends this: the answer of the environment or the agent. A sample that is not finished after \
             timeouts.sample={} s fails.",
            limits.sample_s
        )];
    }
    if has(Phase::Reward) {
        return vec!["What ends this: the answer of the reward, or of the gate.".to_owned()];
    }
    if has(Phase::Start) {
        let working = status.step.waiting.get(&Phase::Environment).copied().unwrap_or_default();
        let working = counted(working, "agent or environment works", "agents or environments work");
        return vec![format!(
            "What ends this: a place or a worker that becomes free; {working} now. A sample that \
             is not finished after timeouts.sample={} s fails.",
            limits.sample_s
        )];
    }
    Vec::new()
}

fn slow_servers<'a>(group: &'a GroupLook, status: &Status) -> Vec<&'a str> {
    let is_slow = |server: &ServerStatus| {
        let rates = server.tokens_per_second.zip(median_of_others(server, &status.servers));
        rates.is_some_and(|(own, others)| others > 0.0 && others >= SLOW * own)
    };
    let names = group.waits.iter().filter_map(|wait| wait.server.as_deref());
    let slow = |name: &&str| status.servers.iter().any(|server| server.name == **name && is_slow(server));
    names.filter(slow).collect()
}

/// Describes what the run waits for between two steps.
fn between_steps(status: &Status) -> Vec<String> {
    let cause = [Phase::Update, Phase::Trainer, Phase::Queue];
    let waits = &status.step.oldest_waits;
    let found = cause.iter().find_map(|phase| waits.iter().find(|wait| wait.phase == *phase));
    let Some(wait) = found else { return Vec::new() };
    let detail = wait.detail.as_deref().unwrap_or("no detail");
    let age = seconds(wait.age_s);
    vec![match wait.phase {
        Phase::Update => match failed_update(status) {
            Some(failed) => {
                format!("The run has waited for an update of the servers for {age}: {detail}. {failed}")
            }
            None => format!("The servers have been updating for {age}: {detail}."),
        },
        Phase::Trainer => format!(
            "The run has waited for the trainer for {age}: {detail}. The servers have version {}{}.{}",
            status.step.policy_version,
            announced(status),
            own_trainer(status)
        ),
        // The first lines say what it waits for.
        _ if status.full_disk.is_some() || status.put_lacks.is_some() => return Vec::new(),
        _ => format!("The run has waited for the queue for {age}: {detail}. {}", room(&status.queue)),
    }]
}

/// Describes the trainer if it is the run's own consumer.
fn own_trainer(status: &Status) -> String {
    let Some(groups) = status.own_trainer_groups else { return String::new() };
    format!(
        " The trainer is the run's own consumer ([queue.consumer]), which announces a version after each batch of \
         {groups} groups. {}",
        room(&status.queue)
    )
}

fn announced(status: &Status) -> String {
    match status.announced_version {
        Some(version) => format!(", and {version} is the last one announced"),
        None => ", and no trainer announces versions".to_owned(),
    }
}

/// Describes the failed update of the servers that will be tried again; `None` if there is none.
fn failed_update(status: &Status) -> Option<String> {
    let (reason, version) = (status.update_failure.as_ref()?, status.announced_version?);
    Some(format!("No server has version {version}: {reason}. The update will be tried again."))
}

/// Describes why new groups are not sent out.
fn held_back(status: &Status) -> Vec<String> {
    let StepLook { counts, policy_version, is_open, data_has_ended, .. } = &status.step;
    let mut lines: Vec<String> = failed_update(status).filter(|_| *is_open).into_iter().collect();
    // A reward's outage holds back prompts that are sent out again too.
    let hold = counts.hold.filter(|hold| *is_open && (!data_has_ended || *hold == Hold::Reward));
    match hold {
        Some(Hold::Trainer) => lines.push(format!(
            "New groups are held back: they would be too old when the trainer takes them. The servers have version \
             {policy_version}{}.{}",
            announced(status),
            own_trainer(status)
        )),
        Some(Hold::Queue) => {
            lines.push(format!("New groups are held back until the queue has room. {}", room(&status.queue)));
        }
        Some(Hold::Reward) => {
            lines.push("New groups are held back until the outage of the reward ends.".to_owned());
        }
        None => lines.extend(held_workers(status)),
    }
    if status.waiting_for_permits > 0 {
        let active = status.servers.iter().filter(|server| server.state == "active");
        let (in_use, capacity) = active.clone().fold((0, 0), |(in_use, capacity), server| {
            (in_use + u64::from(server.in_use), capacity + u64::from(server.capacity))
        });
        lines.push(format!(
            "{} for a permit: {in_use} of {capacity} are taken on {} of {}.",
            counted(status.waiting_for_permits, "request waits", "requests wait"),
            plural(active.count() as u64, "active server"),
            status.servers.len()
        ));
    }
    let is_out = |server: &&ServerStatus| server.state != "active";
    for server in status.servers.iter().filter(is_out) {
        let reason = server.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        lines.push(format!("{} is {}{reason}.", server.name, server.state));
    }
    if *is_open && *data_has_ended {
        lines.push("No new group is sent out: the data has no more prompts.".to_owned());
    } else if *is_open && lines.is_empty() {
        lines.push(match status.step.wants_new {
            true => "Nothing holds new groups back.".to_owned(),
            false => "No new group is sent out: the groups in flight may be enough.".to_owned(),
        });
    }
    lines
}

/// Describes the workers that start no group although the step needs new ones.
fn held_workers(status: &Status) -> Vec<String> {
    let StepLook { is_open, wants_new, workers_without_places, workers_at_full_fleet, .. } = status.step;
    if !is_open || !wants_new {
        return Vec::new();
    }
    let workers = |count: usize| plural(count as u64, "worker");
    let at_full_fleet = (workers_at_full_fleet > 0).then(|| {
        format!(
            "The fleet is full, which holds further groups back on {}: with rollout.fill = \"samples\", groups beyond \
             rollout.max_concurrent_prompts start only on a fleet with room.",
            workers(workers_at_full_fleet)
        )
    });
    let without_places = (workers_without_places > 0).then(|| {
        let has = if workers_without_places == 1 { "has" } else { "have" };
        let workers = workers(workers_without_places);
        format!("{workers} {has} as many groups as rollout.max_concurrent_prompts and rollout.fill allow.")
    });
    at_full_fleet.into_iter().chain(without_places).collect()
}

fn room(queue: &QueueStatus) -> String {
    let lag = |task: &TaskStats| {
        let rows = task.incomplete_rows + task.ready_rows + task.leased_rows + task.away_rows;
        format!("task {} still has to ack {rows} ({} leased)", task.task, task.leased_rows)
    };
    let tasks: Vec<String> = queue.tasks.iter().map(lag).collect();
    format!(
        "The queue has {} and a capacity of {}; {}.",
        plural(queue.rows as u64, "row"),
        queue.capacity_rows,
        tasks.join(", ")
    )
}

fn left_in_queue(queue: &QueueStatus) -> String {
    format!("It ends when consumers have acked every row, or with Ctrl-C. {}", room(queue))
}

#[cfg(test)]
mod tests;
