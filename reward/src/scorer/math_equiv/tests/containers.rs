use std::time::Duration;

use super::properties::stopwatch;
use super::{equal, unequal};
use crate::scorer::math_equiv::{ANSWER_BYTES_MAX, Reason, equivalent};

#[test]
fn lists_and_sets() {
    equal(&[
        ("1, 2, 3", "3, 2, 1"),
        ("1,2,3", "1, 2 and 3"),
        ("1, 2, \\text{ and } 3", "3,1,2"),
        ("x=1 \\text{ or } x=3", "3, 1"),
        ("1;2", "2,1"),
        ("\\{1,2\\}", "\\{2,1\\}"),
        ("{1,2}", "\\{1,2\\}"),
        ("\\{1,1,2\\}", "\\{1,2\\}"),
        ("\\{1,2\\}", "1,2"),
        ("\\left\\{\\frac12, 3\\right\\}", "\\{3, 0.5\\}"),
        ("\\emptyset", "\\{\\}"),
        ("\\varnothing", "∅"),
        ("1\\pm\\sqrt{2}", "1-\\sqrt{2}, 1+\\sqrt{2}"),
        ("\\pm 3", "3, -3"),
        ("x = \\pm 2", "\\{-2, 2\\}"),
        ("\\{1\\pm\\sqrt{5},-2\\}", "-2, 1+\\sqrt5, 1-\\sqrt5"),
        ("\\{(1,2),(3,4)\\}", "(3,4), (1,2)"),
        ("x=1, y=2", "y=2, x=1"),
        ("\\{a,b\\}", "\\{b,a\\}"),
    ]);
    unequal(&[
        ("{1,2}", "{1,2,3}"),
        ("1,2", "1,2,2"),
        ("1,2", "1,3"),
        ("\\{5\\}", "5"),
        ("\\{1,2\\}", "(1,2)"),
        ("\\emptyset", "0"),
        ("\\emptyset", "\\{0\\}"),
        ("\\pm 3", "3"),
        ("1\\pm\\sqrt{2}", "1\\pm\\sqrt{3}"),
        ("x=1, y=2", "x=2, y=1"),
        ("1, 2", "12"),
    ]);
}

#[test]
fn tuples_intervals_matrices() {
    equal(&[
        ("(1,2)", "\\left( 1, 2.0 \\right)"),
        ("(1,2)", "(1, \\frac{4}{2})"),
        ("(1,2,3)", "[1,2,3]"),
        ("\\langle 1,2,3\\rangle", "(1,2,3)"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"),
        ("(3,4]", "\\left(3, \\frac{8}{2}\\right]"),
        ("(2,\\infty)", "x > 2"),
        ("2 < x", "x>2"),
        ("[2,\\infty)", "x \\ge 2"),
        ("(-\\infty, 3]", "x \\leq 3"),
        ("[1,2)", "1 \\le x < 2"),
        ("(1,2]", "2 \\ge x > 1"),
        ("x \\in [1,2]", "[1, 2]"),
        ("x \\ne 0", "(-\\infty,0)\\cup(0,\\infty)"),
        ("x<1 \\text{ or } x>2", "(-\\infty,1) \\cup (2,\\infty)"),
        ("(2,12) \\cup (12,102)", "(12,102)\\cup(2,12)"),
        ("\\mathbb{R}", "(-\\infty,\\infty)"),
        ("\\begin{pmatrix} 1/5 \\\\ -18/5 \\end{pmatrix}", "\\begin{bmatrix} 0.2 \\\\ -3.6 \\end{bmatrix}"),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\\\\\end{pmatrix}"),
        ("\\begin{pmatrix} -7 \\\\ 16 \\\\ 5 \\end{pmatrix}", "(-7,16,5)"),
        (
            "\\left(\\begin{array}{c} 1 \\\\ 2 \\end{array}\\right)",
            "\\begin{pmatrix} 1 \\\\ 2.0 \\end{pmatrix}",
        ),
        ("((1,2),3)", "((1,2.0),3)"),
    ]);
    unequal(&[
        ("(1,2)", "[1,2]"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "(1,2]"),
        ("(1,2)", "(1,3)"),
        ("(1,2,3)", "(1,2)"),
        ("(1,2)", "1,2"),
        ("x>2", "x\\ge 2"),
        ("x>2", "x<2"),
        ("x>2", "y>2"),
        ("(2,\\infty)", "(2,-\\infty)"),
        ("(1,2)\\cup(3,4)", "(1,2)\\cup(3,5)"),
        ("(1,2)\\cup(3,4)", "(1,2)"),
        ("\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        (
            "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
            "\\begin{pmatrix} 1 & 3 \\\\ 2 & 4 \\end{pmatrix}",
        ),
        ("\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "(1,2)"),
        ("(5)", "(5,5)"),
    ]);
}

#[test]
fn relations() {
    equal(&[
        ("x = 5", "5"),
        ("x=5", "x = 5.0"),
        ("y = -2x", "-2x"),
        ("y = -2x", "2x + y = 0"),
        ("2x+4y=6", "x + 2y = 3"),
        ("f(x) = 2x+1", "1+2x"),
        ("f^{-1}(x) = 2x", "2x"),
        ("g'(x) = 3", "3"),
        ("a_{n+1} = 2n", "2n"),
        ("P(A \\cap B) = 1/3", "\\frac13"),
        ("AB = 5", "5"),
        ("xy = 6", "6"),
        ("xy = 6", "yx = 6"),
        ("\\angle ABC = 60^\\circ", "60"),
        ("\\text{Area} = 12\\pi", "12 \\pi"),
        ("x = \\frac{10}{2} = 5", "5"),
        ("1+1=2", "2"),
        ("x_1 = 3", "3"),
        ("x + y > 2", "2 < y + x"),
        ("x+y \\le 4", "2x+2y \\le 8"),
        ("(x,y) = (1,2)", "(1,2)"),
        ("A = \\{1,2\\}", "\\{1,2\\}"),
    ]);
    unequal(&[
        ("x = 5", "6"),
        ("x = 5", "y = 5"),
        ("xy = 6", "y = 6"),
        ("abc = 6", "c = 6"),
        ("y = 2x", "y = -2x"),
        ("2x = 10", "5"),
        ("x^2 = 4", "4"),
        ("\\ln(x) = 2", "2"),
        ("x > 1 \\text{ and } x < 3", "x < 3 \\text{ or } x > 1"),
        ("x + y > 2", "x + y < 2"),
        ("x + y > 2", "x + y \\ge 2"),
        ("x + y = 2", "x + y = 3"),
    ]);
}

/// Nested sets of two elements, with numbers in the innermost sets: `{{1,2},{3,4}}` has depth 2.
fn nested(depth: usize, leaves: &mut impl Iterator<Item = usize>, is_mirrored: bool) -> String {
    if depth == 0 {
        return leaves.next().map_or_else(String::new, |leaf| leaf.to_string());
    }
    let (first, second) = (nested(depth - 1, leaves, is_mirrored), nested(depth - 1, leaves, is_mirrored));
    if is_mirrored { format!("\\{{{second},{first}\\}}") } else { format!("\\{{{first},{second}\\}}") }
}

#[test]
fn sets_within_sets_take_bounded_time() {
    // Three more sets with one element each, which reach the maximum depth.
    let packed = |set: String| format!("\\{{\\{{\\{{{set}\\}}\\}}\\}}");
    let different = |count: usize| packed(nested(8, &mut (0..256).map(|leaf| leaf % count), false));
    let mirrored = |count: usize| packed(nested(8, &mut (0..256).map(|leaf| leaf % count), true));
    for count in [1, 2, 5, 10] {
        let (set, same, other) = (different(count), mirrored(count), different(count + 1));
        assert!(set.len() <= ANSWER_BYTES_MAX, "{} bytes", set.len());
        let started = stopwatch();
        assert!(equivalent(&set, &same).is_equal, "{count}");
        assert!(!equivalent(&set, &other).is_equal, "{count}");
        let took = started();
        assert!(took < Duration::from_secs(2), "{took:?} for {count}");
    }
}

#[test]
fn sets_of_more_pairs_than_the_budget_are_undecided() {
    let set = |numbers: Vec<usize>| {
        let items: Vec<String> = numbers.iter().map(usize::to_string).collect();
        format!("\\{{{}\\}}", items.join(","))
    };
    let (small, large) = (100..400, 100..500);
    assert!(equivalent(&set(small.clone().collect()), &set(small.rev().collect())).is_equal);
    let verdict = equivalent(&set(large.clone().collect()), &set(large.rev().collect()));
    assert_eq!((verdict.is_equal, verdict.reason), (false, Reason::UndecidedComparedAsText));
}
