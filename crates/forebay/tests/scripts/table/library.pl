sub greeting { 'hello ' . shift }
1;
