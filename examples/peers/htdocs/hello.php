<?php
header('Content-Type: text/plain');
echo "Hello from PHP\n";
