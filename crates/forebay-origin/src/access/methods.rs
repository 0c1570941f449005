//! Rules for methods: `allow_methods` and `open_methods`.
//!
//! Some applications take the method from a field of the request. The rules apply to that method,
//! too.

use forebay_conf::Access;
use forebay_net::head::{Request, is_alike};

/// Fields that replace the method of a request in some applications.
const FIELDS: [&str; 3] = ["X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override"];

/// Returns true if the route permits the method of the request, and each method that may replace it.
pub fn permits_method(access: &Access, request: &Request) -> bool {
    access.permits_method(request.method())
        && (access.allow_methods.is_empty()
            || replacing(request).all(|method| access.permits_method(&method)))
}

/// Returns true if the rules about clients and users do not apply to the method of the request, nor
/// to a method that may replace it.
pub fn is_open_to(access: &Access, request: &Request) -> bool {
    access.is_open_to(request.method())
        && replacing(request).all(|method| access.is_open_to(&method))
}

/// Returns the methods that applications may read instead of the request's own.
fn replacing(request: &Request) -> impl Iterator<Item = Vec<u8>> {
    let bytes = &request.bytes;
    let is_replacing = |name: &[u8]| FIELDS.iter().any(|field| is_alike(name, field));
    let fields = request.head.fields.iter();
    let fields = fields.filter(move |field| is_replacing(field.name.of(bytes)));
    // Applications ignore the case of such a method.
    fields.map(|field| field.value.of(bytes).to_ascii_uppercase())
}
