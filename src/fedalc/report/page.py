from pathlib import Path
def write_page(folder: Path) -> None: pass
