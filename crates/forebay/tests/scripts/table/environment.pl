#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "$_=", $ENV{$_} // '(none)', "\n" for qw(REQUEST_METHOD QUERY_STRING SCRIPT_NAME PATH_INFO
    REQUEST_URI SERVER_PROTOCOL SERVER_NAME GATEWAY_INTERFACE REMOTE_ADDR CONTENT_TYPE
    CONTENT_LENGTH HTTP_X_THING HTTP_COOKIE HTTPS ADDED);
$ENV{ADDED} = 'by the script';
$ENV{HTTP_X_THING} = 'spoiled';
