//! Finds the routes whose paths may match, without a scan over all routes.
//!
//! The index only excludes routes: a candidate may still refuse the request, because of its method,
//! its suffixes, its expression or `when`. So whoever asks tests each candidate, in order, as if it
//! had walked over all routes.
//!
//! The texts of all path patterns are sorted. Every prefix of a path sorts before the path, and every
//! text between a prefix and the path begins with this prefix. So all texts that are prefixes of a
//! path are among the last text that is not greater than the path, and the prefixes of that text.
//! Each text knows its longest prefix (`parent`), so one binary search and a walk over the parents
//! find them all.

use forebay_conf::{Matcher, PathPattern};

/// With at most this many routes, trying each of them takes less time than the search.
const FEW: usize = 4;

/// The paths of a site's routes. Routes are numbered by position.
#[derive(Debug, Default)]
pub struct RouteIndex {
    /// Number of the routes.
    len: usize,
    /// Sorted by `text`.
    nodes: Vec<Node>,
    /// Routes for any path, or for paths that the index cannot compare. In ascending order, as in
    /// each node.
    anywhere: Vec<u32>,
}

#[derive(Debug, Default)]
struct Node {
    text: Box<[u8]>,
    /// The longest other text that this text begins with.
    parent: Option<u32>,
    /// Routes for exactly this path.
    exact: Vec<u32>,
    /// Routes for paths that begin with this text.
    prefix: Vec<u32>,
}

impl RouteIndex {
    /// Creates the index of routes with these matchers.
    pub fn new<'a>(matchers: impl IntoIterator<Item = &'a Matcher>) -> Self {
        let mut anywhere = Vec::new();
        let mut texts: Vec<(Box<[u8]>, bool, u32)> = Vec::new();
        let mut len = 0;
        for (route, matcher) in (0..).zip(matchers) {
            len += 1;
            let literal = matcher.regex.as_ref().and_then(|regex| regex.literal_start());
            match literal {
                _ if !matcher.paths.is_empty() => {
                    texts.extend(matcher.paths.iter().map(|pattern| match pattern {
                        PathPattern::Exact(text) => (text.as_bytes().into(), true, route),
                        PathPattern::Prefix(text) => (text.as_bytes().into(), false, route),
                    }));
                }
                Some(start) => texts.push((start.into_bytes().into(), false, route)),
                None => anywhere.push(route),
            }
        }
        texts.sort();
        texts.dedup();
        let mut nodes: Vec<Node> = Vec::new();
        for (text, is_exact, route) in texts {
            if nodes.last().is_none_or(|last| last.text != text) {
                let mut parent = nodes.len().checked_sub(1);
                while let Some(at) = parent
                    && !text.starts_with(&nodes[at].text)
                {
                    parent = nodes[at].parent.map(|at| at as usize);
                }
                let parent = parent.map(|at| at as u32);
                nodes.push(Node { text, parent, ..Node::default() });
            }
            let node = nodes.last_mut().expect("the node of this text is the last one");
            if is_exact { &mut node.exact } else { &mut node.prefix }.push(route);
        }
        Self { len, nodes, anywhere }
    }

    /// The first route from number `from` on whose paths may match the decoded `path`.
    pub fn next(&self, path: &[u8], from: usize) -> Option<usize> {
        if self.len <= FEW {
            return (from < self.len).then_some(from);
        }
        self.search(path, from)
    }

    fn search(&self, path: &[u8], from: usize) -> Option<usize> {
        let first = |routes: &[u32]| {
            routes.get(routes.partition_point(|&route| (route as usize) < from)).copied()
        };
        let mut found = first(&self.anywhere);
        let mut consider = |routes: &[u32]| {
            let next = first(routes);
            found = found.into_iter().chain(next).min();
        };
        let mut at = self.nodes.partition_point(|node| *node.text <= *path).checked_sub(1);
        while let Some(number) = at {
            let node = &self.nodes[number];
            if path.starts_with(&node.text) {
                consider(&node.prefix);
                if node.text.len() == path.len() {
                    consider(&node.exact);
                }
            }
            at = node.parent.map(|at| at as usize);
        }
        found.map(|route| route as usize)
    }

    /// The routes from number `from` on whose paths may match the decoded `path`, in ascending
    /// order.
    pub fn candidates<'a>(
        &'a self,
        path: &'a [u8],
        from: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        std::iter::successors(self.next(path, from), |&route| self.next(path, route + 1))
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use forebay_conf::Regex;

    use super::*;

    #[test]
    fn the_index_leaves_out_no_route_that_matches() {
        let mut rng = Rng::with_seed(45);
        let text = |rng: &mut Rng| {
            let segments =
                (0..=rng.usize(..3)).map(|_| ["/", "/a", "/ab", "/\u{fc}"][rng.usize(..4)]);
            segments.collect::<String>()
        };
        for _ in 0..500 {
            let matcher = |rng: &mut Rng| {
                let pattern = |rng: &mut Rng| match rng.usize(..2) {
                    0 => PathPattern::Exact(text(rng)),
                    _ => PathPattern::Prefix(text(rng)),
                };
                let paths = (0..rng.usize(..4)).map(|_| pattern(rng)).collect();
                let regex = format!(
                    "{}{}{}",
                    ["", "^"][rng.usize(..2)],
                    text(rng),
                    ["", "?", ".*", "$"][rng.usize(..4)]
                );
                let regex = Regex::new(&regex, rng.usize(..4) == 0).unwrap();
                let suffixes = if rng.usize(..4) == 0 { vec!["b".to_owned()] } else { Vec::new() };
                Matcher {
                    paths,
                    suffixes,
                    regex: (rng.usize(..3) == 0).then_some(regex),
                    ..Matcher::default()
                }
            };
            let matchers: Vec<_> = (0..rng.usize(..30)).map(|_| matcher(&mut rng)).collect();
            let index = RouteIndex::new(&matchers);
            for _ in 0..20 {
                let (path, from) = (text(&mut rng), rng.usize(..10));
                let matching: Vec<_> = (from..matchers.len())
                    .filter(|&at| matchers[at].matches(b"GET", path.as_bytes()).is_some())
                    .collect();
                let candidates: Vec<_> = index.candidates(path.as_bytes(), from).collect();
                assert!(candidates.is_sorted_by(|a, b| a < b), "{candidates:?}");
                let found: Vec<_> = candidates
                    .iter()
                    .copied()
                    .filter(|&at| matchers[at].matches(b"GET", path.as_bytes()).is_some())
                    .collect();
                assert_eq!(found, matching, "{path} {matchers:?}");
            }
        }
    }

    #[test]
    fn a_path_tests_only_the_routes_that_share_its_beginning() {
        let paths = (0..5000).map(|n| vec![PathPattern::Prefix(format!("/app{n}/"))]);
        let last = Matcher { paths: vec![PathPattern::Prefix("/".into())], ..Matcher::default() };
        let mut matchers: Vec<_> =
            paths.map(|paths| Matcher { paths, ..Matcher::default() }).collect();
        matchers.push(last);
        let index = RouteIndex::new(&matchers);
        let candidates: Vec<_> = index.candidates(b"/app4711/x", 0).collect();
        assert_eq!(candidates, [4711, 5000]);
    }
}
