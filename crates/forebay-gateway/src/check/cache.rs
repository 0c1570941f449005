//! Checks for routes whose stored replies may depend on more than their key.

use forebay_conf::{
    Cache, Finding, Placeholder, Plan, RequestChange, Route, Template, TemplatePart,
};
use forebay_origin::cache::examine;

/// Returns warnings about routes with `cache` that send the name of the user to the application in
/// a request field. A reply for one user may then be stored and sent to other users.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, site) in plan.sites.iter().enumerate() {
        for (index, route) in site.routes.iter().enumerate() {
            let Some(cache) = &route.cache else { continue };
            let Some(field) = personal_field(route, cache) else { continue };
            let key = ["site", &at.to_string(), "route", &index.to_string(), "cache"];
            found.push(Finding {
                key: key.map(str::to_owned).to_vec(),
                message: format!(
                    "`{field}` names the user to the application, and others get its replies"
                ),
                help: format!(
                    "add its placeholder to `key`, or let the application reply with \
                     Vary: {field}, or with Cache-Control: private for personal pages"
                ),
            });
        }
    }
    found
}

/// Returns the name of a request field whose value depends on the user, if the key of the cache
/// does not depend on the user. Returns `None` if there is no such field.
fn personal_field<'r>(route: &'r Route, cache: &Cache) -> Option<&'r str> {
    let is_in_key = |value: &Placeholder| cache.key.uses(|other| other == value);
    let is_personal = |value: &Placeholder| {
        let is_of_user =
            matches!(value, Placeholder::User | Placeholder::TlsSubject | Placeholder::Cookie(_));
        is_of_user && !is_in_key(value)
    };
    // The value of a `[map.NAME]` is computed from placeholders. If the key contains this value,
    // the key need not contain those placeholders.
    let is_doubtful = |value: &Placeholder| {
        let text = Template::of(vec![TemplatePart::Value(value.clone())]);
        !is_in_key(value) && text.depends_on(&is_personal)
    };
    let field = route.request_headers.iter().find(|field| match &field.change {
        RequestChange::Set(value) | RequestChange::Add(value) => value.uses(is_doubtful),
        RequestChange::Remove => false,
    });
    field.map(|field| &*field.name)
}

/// Returns an error if a route stores replies, and `cache_dir` cannot be the directory of a cache.
/// Returns `None` in all other cases.
pub fn unusable_dir(plan: &Plan) -> Option<Finding> {
    let mut routes = plan.sites.iter().flat_map(|site| &site.routes);
    let disk = plan.server.cache_disk.as_ref()?;
    routes.any(|route| route.cache.is_some()).then_some(())?;
    let message = examine(&disk.dir).err()?;
    Some(Finding {
        key: vec!["server".into(), "cache_dir".into()],
        message,
        help: "name an empty directory, or a new one in an existing directory".to_owned(),
    })
}
