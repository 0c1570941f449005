//! The user of `[server]`, from the files of the machine that is examined.

use forebay_process::Person;

/// Returns the user with this name, with all its groups. `passwd` and `group` are the texts of these
/// files in /etc. Returns `None` if there is no such user, or if an ID in the user's line is not a
/// number.
pub fn person(name: &str, passwd: &str, group: &str) -> Option<Person> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let of_user = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
    let id = of_user.get(2)?.parse().ok()?;
    let mut groups = vec![of_user.get(3)?.parse().ok()?];
    for line in group.lines() {
        let fields: Vec<_> = line.split(':').collect();
        let members = fields.get(3).is_some_and(|all| all.split(',').any(|member| member == name));
        groups.extend(fields.get(2).and_then(|id| id.parse::<u32>().ok()).filter(|_| members));
    }
    Some(Person::new(name, id, groups))
}
