//! Total samples per function, over all its positions in call stacks.

use std::collections::HashMap;

use super::Stacks;

/// Numbers of samples of a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Function<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// Samples in the function itself: first of this profile, then of the profile that
    /// [`Stacks::beside`] added.
    pub own: [u64; 2],
    /// Samples in the function and in the functions that it calls.
    pub total: [u64; 2],
}

/// Returns all functions of `stacks`. The function with the most samples of its own comes first. In
/// the total of a recursive function, each sample counts only once.
pub fn functions(stacks: &Stacks) -> Vec<Function<'_>> {
    let totals = stacks.totals();
    let mut found: HashMap<&str, Function<'_>> = HashMap::new();
    for (index, node) in stacks.nodes().iter().enumerate().skip(1) {
        let name = stacks.name(index);
        let of = found.entry(name).or_insert(Function { name, own: [0; 2], total: [0; 2] });
        // The outermost call of a recursive function includes the samples of its inner calls.
        let total = if is_called_by(stacks, index, name) { [0; 2] } else { totals[index] };
        of.own = sum(of.own, node.own);
        of.total = sum(of.total, total);
    }
    let mut all: Vec<Function<'_>> = found.into_values().collect();
    all.sort_unstable_by(|a, b| (b.own, b.total, a.name).cmp(&(a.own, a.total, b.name)));
    all
}

fn sum(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0] + b[0], a[1] + b[1]]
}

fn is_called_by(stacks: &Stacks, index: usize, name: &str) -> bool {
    let mut at = stacks.nodes()[index].caller;
    while at != 0 {
        if stacks.name(at) == name {
            return true;
        }
        at = stacks.nodes()[at].caller;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_summed_over_all_stacks_and_recursion_counts_once() {
        let text = "main;f;g;f 2\nmain;f 1\nmain;h;f 4\nmain 1\n";
        let stacks = Stacks::read_folded(text.as_bytes()).unwrap();
        let found = functions(&stacks);
        let of = |name: &str| {
            let function = found.iter().find(|function| function.name == name).unwrap();
            (function.own[0], function.total[0])
        };
        assert_eq!((of("main"), of("f"), of("g"), of("h")), ((1, 8), (7, 7), (0, 2), (0, 4)));
        assert_eq!(found[0].name, "f");
    }
}
