# URLs of CGI::Application::Dispatch.
package Dispatched;

use strict;
use warnings;

use parent 'CGI::Application::Dispatch';

use Dispatched::Page ();

sub dispatch_args {
    return { prefix => 'Dispatched', table => ['' => { app => 'Page', rm => 'start' }, ':app/:rm/:id?' => {}] };
}

1;
