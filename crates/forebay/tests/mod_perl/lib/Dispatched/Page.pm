# An application of CGI::Application.
package Dispatched::Page;

use strict;
use warnings;

use parent 'CGI::Application';

sub setup {
    my ($self) = @_;
    $self->start_mode('start');
    $self->run_modes([qw(start show moved)]);
}

sub start { 'the first page' }

sub show {
    my ($self) = @_;
    return sprintf 'page %s, %s', $self->param('id') // 'none', $self->query->param('q') // 'no query';
}

sub moved {
    my ($self) = @_;
    $self->header_type('redirect');
    $self->header_props(-url => '/elsewhere');
    return '';
}

1;
