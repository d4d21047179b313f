from aipo.cli import main

main()
