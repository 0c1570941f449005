//! Rules for methods: `allow_methods` and `open_methods`.
//!
//! Some applications take the method from a field of the request. The rules apply to that method,
//! too.

use forebay_conf::Access;
use forebay_net::head::{Request, replacing_methods};

/// Returns true if the route permits the method of the request, and each method in fields such as
/// `X-HTTP-Method-Override`.
pub fn permits_method(access: &Access, request: &Request) -> bool {
    access.permits_method(request.method())
        && (access.allow_methods.is_empty()
            || replacing_methods(request).all(|method| access.permits_method(&method)))
}

/// Returns true if `open_methods` contains the method of the request, and each method in fields
/// such as `X-HTTP-Method-Override`. The rules about clients and users then do not apply.
pub fn is_open_to(access: &Access, request: &Request) -> bool {
    access.is_open_to(request.method())
        && replacing_methods(request).all(|method| access.is_open_to(&method))
}
