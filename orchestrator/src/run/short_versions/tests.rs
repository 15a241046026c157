use super::*;

/// Plays a run whose steps have these numbers of groups, of four that they should have. The consumer looks after
/// every `pause` steps. Returns the batches that it announced after.
fn batches(steps_per_version: u64, steps: &[u64], pause: usize) -> Vec<u64> {
    let mut short = ShortVersions::new(steps_per_version, 4);
    let (mut acked, mut put, mut batches) = (0, 0, Vec::new());
    for (at, groups) in steps.iter().enumerate() {
        put += groups;
        if *groups < 4 {
            short.note(at as u64 + 1, put);
        }
        if (at + 1) % pause != 0 {
            continue;
        }
        loop {
            let taken = match short.due(acked, put, 4 * steps_per_version) {
                Due::Groups(groups) => groups,
                Due::Empty => 0,
                Due::Later => break,
            };
            acked += taken;
            short.announced(taken, acked);
            batches.push(taken);
        }
    }
    batches
}

#[test]
fn each_version_is_announced_once_with_the_groups_that_it_has() {
    for pause in [1, 2, 3, 6] {
        assert_eq!(batches(1, &[4, 4, 4, 4, 4, 4], pause), [4; 6], "{pause}");
        assert_eq!(batches(1, &[4, 1, 4, 3, 2, 4], pause), [4, 1, 4, 3, 2, 4], "{pause}");
        assert_eq!(batches(1, &[0, 4, 0, 0, 2, 0], pause), [0, 4, 0, 0, 2, 0], "{pause}");
        assert_eq!(batches(2, &[4, 1, 4, 4, 2, 4], pause), [5, 8, 6], "{pause}");
        assert_eq!(batches(2, &[2, 1, 0, 0, 4, 3], pause), [3, 0, 7], "{pause}");
        assert_eq!(batches(3, &[4, 4, 3, 1, 4, 4], pause), [11, 9], "{pause}");
    }
    assert_eq!(batches(1, &[4, 4], 1), [4, 4]);
    assert_eq!(batches(2, &[2, 4, 4], 1), [6], "the second version is not complete");
}

#[test]
fn a_run_that_continues_knows_the_end_of_the_last_version() {
    for (steps_per_version, step, groups, due) in [
        (1, 7, 3, Due::Groups(3)),
        (1, 7, 4, Due::Groups(4)),
        (1, 7, 7, Due::Groups(4)),
        (1, 7, 0, Due::Later),
        (2, 7, 3, Due::Later),
        (2, 8, 5, Due::Groups(5)),
        (2, 8, 8, Due::Groups(8)),
        (2, 8, 0, Due::Later),
    ] {
        let mut short = ShortVersions::new(steps_per_version, 4);
        short.note_earlier(step, groups);
        assert_eq!(short.due(0, groups, 4 * steps_per_version), due, "{steps_per_version} {step} {groups}");
    }
    let mut short = ShortVersions::new(2, 4);
    short.note_earlier(7, 3);
    assert_eq!(short.due(0, 7, 8), Due::Groups(7), "the version ends with the next step, which is full");
}
