//! Prints the library of functions, for packages that install it.

use sluicegate_redis::script::Library;

fn main() {
    print!("{}", Library::text());
}
